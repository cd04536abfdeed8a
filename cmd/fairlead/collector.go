package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

// startCollector starts removing flows that are over, and returns the function to call when
// backends leave. Without a collector, packets are still forwarded until there is no room for more
// flows; the log and the status say so.
func (a *agent) startCollector(start func(string, func(context.Context) error), log *slog.Logger) func(model.Protocol) {
	collector, end, err := a.newCollector(log)
	if err != nil {
		a.mu.Lock()
		a.cannotCollect = err.Error()
		a.mu.Unlock()
		log.Error("flows that are over are not removed", "error", err)
		return nil
	}
	a.mu.Lock()
	a.collector = collector
	a.mu.Unlock()
	start("conntrack", func(ctx context.Context) error { return errors.Join(collector.Run(ctx), end()) })
	return collector.Left
}

// newCollector returns a collector, and a function that releases what it uses.
func (a *agent) newCollector(log *slog.Logger) (*conntrack.Collector, func() error, error) {
	timeouts, err := timeoutsOf(&a.cfg.Conntrack)
	if err != nil {
		return nil, nil, err
	}
	tick, err := datapath.MeasureTick()
	if err != nil {
		return nil, nil, err
	}
	most, err := mostRows(a.cfg.Conntrack.Max)
	if err != nil {
		return nil, nil, err
	}
	table, err := newFlowTable(a.path, log)
	if err != nil {
		return nil, nil, err
	}
	ports, shared := a.path.SnatPorts()
	stack := &netfilterFlows{}
	collector := conntrack.NewCollector(conntrack.Config{
		Flows: table.now, Clock: conntrack.Clock(tick), Timeouts: timeouts, Stale: a.stale, Kept: stack.ask, Grow: table.grow, Most: most, Log: log,
		Ports: conntrack.Ports{First: ports.First, Last: ports.Last, Shared: shared},
	})
	return collector, func() error {
		stack.close()
		return table.Close()
	}, nil
}

func timeoutsOf(c *config.Conntrack) (conntrack.Timeouts, error) {
	var t conntrack.Timeouts
	for _, one := range []struct {
		value string
		to    *time.Duration
	}{
		{c.TCPEstablished, &t.TCPEstablished},
		{c.TCPHalfClosed, &t.TCPHalfClosed},
		{c.TCPClosing, &t.TCPClosing},
		{c.TCPReset, &t.TCPReset},
		{c.TCPHalfOpen, &t.TCPHalfOpen},
		{c.UDPStream, &t.UDPStream},
		{c.UDP, &t.UDP},
		{c.SCTPEstablished, &t.SCTPEstablished},
		{c.SCTPClosing, &t.SCTPClosing},
	} {
		var err error
		if *one.to, err = time.ParseDuration(one.value); err != nil {
			return t, fmt.Errorf("read a timeout of flows: %w", err)
		}
	}
	return t, nil
}

// callEach returns a function that calls all of the functions that are not nil.
func callEach(all ...func(model.Protocol)) func(model.Protocol) {
	return func(protocol model.Protocol) {
		for _, call := range all {
			if call != nil {
				call(protocol)
			}
		}
	}
}

// conntrackStats returns the collector's counts, which are zero until there is one, and its last
// error or why there is none.
func (a *agent) conntrackStats() (stats conntrack.Stats, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.collector == nil {
		return conntrack.Stats{}, a.cannotCollect
	}
	stats = a.collector.Stats()
	return stats, stats.LastError
}

// flowStatus returns how many flows are remembered, or nil before the first pass.
func (a *agent) flowStatus() *observe.FlowStatus {
	stats, why := a.conntrackStats()
	if stats.LastPass.IsZero() && why == "" {
		return nil
	}
	return &observe.FlowStatus{
		Rows: stats.Rows[0], Capacity: stats.Capacity[0], Most: stats.Most, Growths: stats.Growths, GrowError: stats.GrowError,
		PendingRows: stats.Rows[1], PendingCapacity: stats.Capacity[1],
		Forgotten: stats.Idle + stats.Stale, LastTime: stats.LastPass, LastDuration: stats.LastTook, Error: why,
	}
}

// snatUses returns how many SNAT ports are in use where most are. While flows are refused for lack of
// a port, it has the flows looked through soon.
func (a *agent) snatUses(refused bool) (uses []observe.SnatUse) {
	stats, _ := a.conntrackStats()
	if stats.LastPass.IsZero() {
		return nil
	}
	if refused {
		a.collector.Look()
	}
	for i, use := range stats.Ports {
		of := observe.SnatUse{User: conntrack.PortUserNames[i], Used: use.Used, Limit: use.Of, Destination: use.Destination, Pod: use.Pod}
		if use.Used > 0 {
			of.Protocol = use.Protocol.String()
		}
		uses = append(uses, of)
	}
	return uses
}
