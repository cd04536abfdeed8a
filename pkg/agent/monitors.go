package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
)

// monitors are clients of the API that get the programs' events.
type monitors struct {
	hub   *monitor.Hub
	store *model.Store
}

// newMonitors returns none. The maps will be pinned in dir, and rule puts the number of a rule into words.
func newMonitors(path *datapath.Datapath, store *model.Store, rule func(uint32) string, dir string, log *slog.Logger) *monitors {
	m := &monitors{store: store}
	m.hub = monitor.NewHub(monitor.Config{
		Source: func() (monitor.Source, error) { return path.Events() },
		Words: func() (monitor.Words, error) {
			return monitor.NewTranslator(dir, monitor.Names{Pod: m.podAt, Rule: rule})
		},
		Log: log,
	})
	return m
}

// open opens a stream of events for a client of the API.
func (m *monitors) open(filter monitor.Filter) (api.Stream, error) {
	return m.hub.Subscribe(filter)
}

// run ends all streams when the agent ends, so that the API does not wait for them.
func (m *monitors) run(ctx context.Context) error {
	<-ctx.Done()
	m.hub.Close()
	return nil
}

// podAt returns the name of this node's pod with the address, or "" if there is none.
func (m *monitors) podAt(addr netip.Addr) string {
	for _, pod := range m.store.Pods() {
		if !pod.HostNetwork && !pod.Finished && slices.Contains(pod.Addrs, addr) {
			return pod.Name.String()
		}
	}
	return ""
}
