package main

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/observe"
)

// newHub returns the hub that passes the programs' events to monitors.
func (a *agent) newHub(log *slog.Logger) *monitor.Hub {
	return monitor.NewHub(monitor.Config{
		Source: func() (monitor.Source, error) { return a.path.Events() },
		Words:  func() (monitor.Words, error) { return observe.NewEventWords(mapsDir(a.cfg), a.podAt) },
		Log:    log,
	})
}

// monitor opens a stream of events for a client of the API.
func (a *agent) monitor(filter observe.EventFilter) (api.Stream, error) {
	return a.hub.Subscribe(filter)
}

// endMonitors ends all streams when the agent ends, so that the API does not wait for them.
func (a *agent) endMonitors(ctx context.Context) error {
	<-ctx.Done()
	a.hub.Close()
	return nil
}

// podAt returns the name of this node's pod with the address, or "" if there is none.
func (a *agent) podAt(addr netip.Addr) string {
	for _, pod := range a.store.Pods() {
		if !pod.HostNetwork && !pod.Finished && slices.Contains(pod.Addrs, addr) {
			return pod.Name.String()
		}
	}
	return ""
}
