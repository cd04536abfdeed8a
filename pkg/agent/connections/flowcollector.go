package connections

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/ticks"
)

// FlowCollector removes flows that are over. Without one, packets are still forwarded until there is no room
// for more flows; the log and the status say so.
type FlowCollector struct {
	running *conntrack.Collector // nil if there is none
	why     string               // why there is none
	close   func() error         // releases what it uses
}

// NewFlowCollector returns a collector, which says in its status if it cannot work.
func NewFlowCollector(cfg *Config) *FlowCollector {
	c := &FlowCollector{}
	if err := c.open(cfg); err != nil {
		c.why = err.Error()
		cfg.Log.Error("flows that are over are not removed", "error", err)
	}
	return c
}

func (c *FlowCollector) open(cfg *Config) error {
	timeouts, err := Timeouts(&cfg.Options.Conntrack)
	if err != nil {
		return err
	}
	tick, err := ticks.Measure()
	if err != nil {
		return err
	}
	most, err := MostRows(cfg.Options.Conntrack.Max)
	if err != nil {
		return err
	}
	table, err := newFlowTable(cfg.Path, cfg.Log)
	if err != nil {
		return err
	}
	ports, shared := cfg.Path.SnatPorts()
	stack := &netfilterFlows{}
	c.running = conntrack.NewCollector(conntrack.Config{
		Flows: table.now, Clock: conntrack.Clock(tick), Timeouts: timeouts, Stale: cfg.Stale, StackEntry: stack.ask, Grow: table.grow, Most: most, Log: cfg.Log,
		Ports: conntrack.Ports{First: ports.First, Last: ports.Last, Shared: shared},
	})
	c.close = func() error {
		stack.close()
		return table.Close()
	}
	return nil
}

// Run removes flows that are over until the context ends.
func (c *FlowCollector) Run(ctx context.Context) error {
	if c.running == nil {
		return nil
	}
	return errors.Join(c.running.Run(ctx), c.close())
}

// Left says that a backend of the protocol is gone.
func (c *FlowCollector) Left(protocol model.Protocol) {
	if c.running != nil {
		c.running.Left(protocol)
	}
}

// Stats returns the collector's counts, and its last error or why there is none. A nil collector has neither.
func (c *FlowCollector) Stats() (stats conntrack.Stats, why string) {
	if c == nil {
		return conntrack.Stats{}, ""
	}
	if c.running == nil {
		return conntrack.Stats{}, c.why
	}
	stats = c.running.Stats()
	return stats, stats.LastError
}

// Status returns how many flows are remembered, or nil before the first pass.
func (c *FlowCollector) Status() *conntrack.Status {
	stats, why := c.Stats()
	return stats.Status(why)
}

// SnatUses returns how many SNAT ports are in use where most are. While flows are refused for lack of
// a port, it has the flows scanned soon.
func (c *FlowCollector) SnatUses(refused bool) (uses []mapstats.SnatUse) {
	stats, _ := c.Stats()
	if stats.LastPass.IsZero() {
		return nil
	}
	if refused {
		c.running.Wake()
	}
	for i, use := range stats.Ports {
		of := mapstats.SnatUse{User: conntrack.PortUserNames[i], Used: use.Used, Limit: use.Of, Destination: use.Destination, Pod: use.Pod}
		if use.Used > 0 {
			of.Protocol = use.Protocol.String()
		}
		uses = append(uses, of)
	}
	return uses
}

// Timeouts parses the options' timeouts of flows.
func Timeouts(c *config.Conntrack) (conntrack.Timeouts, error) {
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
