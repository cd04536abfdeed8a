package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/health"
)

// proxyMode is the answer at /proxyMode, where kube-proxy names its mode.
const proxyMode = "fairlead"

// newServers returns the servers for the addresses in the configuration.
func (a *agent) newServers(log *slog.Logger) []*health.Server {
	proxy := a.proxy()
	list := []health.ServerConfig{
		{Option: "metrics-address", Address: a.cfg.MetricsAddress, Routes: map[string]http.Handler{
			"/metrics": a.metrics.Handler(), "/proxyMode": health.Text(proxyMode),
		}},
		{Option: "healthz-address", Address: a.cfg.HealthzAddress, Routes: map[string]http.Handler{
			"/healthz": proxy.Health(), "/livez": proxy.Live(),
		}},
		{Option: "ready-address", Address: a.cfg.ReadyAddress, Routes: map[string]http.Handler{
			"/readyz": health.Ready(a.checks()), "/livez": proxy.Live(),
		}},
	}
	return serversOf(list, a.metrics.Evicted, log)
}

// serversOf returns one server per address of the list. Options with the same address share a
// server.
func serversOf(list []health.ServerConfig, evicted func(), log *slog.Logger) []*health.Server {
	byAddress := map[string]health.ServerConfig{}
	var servers []*health.Server
	for _, cfg := range list {
		if cfg.Address == "" {
			continue
		}
		if first, taken := byAddress[cfg.Address]; taken {
			maps.Copy(first.Routes, cfg.Routes)
			continue
		}
		cfg.Evicted, cfg.Log = evicted, log
		byAddress[cfg.Address] = cfg
		servers = append(servers, health.NewServer(cfg))
	}
	return servers
}

// faultsOf returns a sentence for each server that cannot answer.
func faultsOf(servers []*health.Server) (list []string) {
	for _, server := range servers {
		if fault := server.Fault(); fault != "" {
			list = append(list, fmt.Sprintf("Connections are handled, but an address for metrics or health checks does not answer: %s.", fault))
		}
	}
	return list
}

func (a *agent) proxy() *health.Proxy {
	return &health.Proxy{
		Waiting: a.stuck, Updated: a.updated, Eligible: a.eligible, Serving: a.serving, Count: a.metrics.Answered,
	}
}

// waiting returns since when the oldest change has been waiting, or since when the reconciler has
// been waiting for readers.
func (a *agent) waiting() time.Time {
	since := a.store.Waiting()
	if r := a.current(); r != nil {
		if grace := r.Stats().GraceSince; since.IsZero() || !grace.IsZero() && grace.Before(since) {
			return grace
		}
	}
	return since
}

// stuck returns since when nothing has come of the changes that wait; zero if none do, or if they
// only wait for their turn.
func (a *agent) stuck() time.Time {
	if r := a.current(); r != nil {
		return r.Stuck()
	}
	return a.store.Waiting()
}

// updated returns when the maps were last up to date.
func (a *agent) updated() time.Time {
	if r := a.current(); r != nil {
		return r.Stats().LastSettled
	}
	return time.Time{}
}

// eligible reports whether load balancers may send to this node. A cluster that does not know the
// node, or no longer does, is about to lose it; files need not mention it.
func (a *agent) eligible() bool {
	node := a.store.Self()
	return !node.Leaving && (node.UID != "" || a.cfg.Source != config.Kubernetes)
}

// serving reports whether the programs have maps to read: those of an earlier agent, or ones that
// this agent has written.
func (a *agent) serving() bool {
	r := a.current()
	return r != nil && (a.path.Adopted() || !r.Stats().LastSettled.IsZero())
}

// checks returns the checks of /readyz.
func (a *agent) checks() []health.Check {
	return []health.Check{
		{Name: "source-synced", Run: func() error {
			if missing := a.store.Unsynced(); len(missing) > 0 {
				return fmt.Errorf("missing: %s", strings.Join(missing, ", "))
			}
			return nil
		}},
		{Name: "maps-written", Run: func() error {
			r := a.current()
			if r == nil {
				return errors.New("the maps do not exist yet")
			}
			if stats := r.Stats(); !stats.Synced || stats.LastSettled.IsZero() {
				return fmt.Errorf("%d changes are waiting", stats.Pending)
			}
			return nil
		}},
		{Name: "programs-attached", Run: func() error {
			attached, err := a.path.Status()
			if err != nil {
				return err
			}
			var missing []string
			for _, p := range attached.Programs {
				if !p.Attached && !p.Idle {
					missing = append(missing, p.Name)
				}
			}
			if len(missing) > 0 {
				return fmt.Errorf("missing: %s", strings.Join(missing, ", "))
			}
			return nil
		}},
		{Name: "programs-at-work", Run: a.programsAtWork},
	}
}

// programsAtWork returns why the last check found that the programs miss sockets that they should
// see. It returns nil if the agent's own sockets cannot tell, because that is not the node's fault.
func (a *agent) programsAtWork() error {
	attached, err := a.path.Status()
	if err != nil {
		return err
	}
	found := &attached.Attachment
	if found.Checked.IsZero() {
		return errors.New("not checked yet")
	}
	if found.Err != nil {
		return found.Err
	}
	var errs []error
	for _, p := range found.Proofs {
		if p.State == datapath.Missed {
			errs = append(errs, fmt.Errorf("%s: %s", p.Family, p.Why))
		}
	}
	return errors.Join(errs...)
}
