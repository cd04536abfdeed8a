package main

import (
	"fmt"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/observe"
)

// newMetrics returns the metrics of an agent.
func newMetrics(a *agent) (*metrics.Metrics, error) {
	var err error
	if a.gauge, err = observe.NewGauge(datapath.MapsDir(a.cfg.BPFFS)); err != nil {
		return nil, fmt.Errorf("prepare metrics: %w", err)
	}
	return metrics.New(buildOf(), func() metrics.Sample { return a.sample() }), nil
}

// buildOf describes this program for the metrics.
func buildOf() metrics.Build {
	b := currentBuild()
	return metrics.Build{Version: b.Version, Commit: b.Commit, Go: b.Go, Kernel: b.Kernel}
}

// measure returns the state of the maps, with the numbers of rows that the agent itself counts.
func (a *agent) measure() (observe.Reading, error) {
	reading, err := a.gauge.Read()
	if err != nil {
		return reading, err
	}
	used := map[string]int{}
	if r := a.current(); r != nil {
		stats := r.Stats()
		used = map[string]int{
			"svcs": stats.Frontends, "services": stats.Services, "names": stats.Services, "slots": stats.Slots, "backends": stats.Backends,
		}
	}
	_, _, flows := a.connections()
	if stats, _ := flows.Stats(); !stats.LastPass.IsZero() {
		used["ct"] = stats.Rows[0]
	}
	for i := range reading.Maps {
		if n, ok := used[reading.Maps[i].Name]; ok {
			reading.Maps[i].SetEntries(n)
		}
	}
	return reading, nil
}

// sample reads what one scrape shows. It lists neither rows nor objects, so its cost does not
// depend on their number. Exceptions are pods with a rate, each of which it shows, and maps that
// evict rows, which are counted now and then.
func (a *agent) sample() metrics.Sample {
	var status observe.Status
	reading, err := a.measure()
	a.fillMaps(&status, &reading)
	a.complete(&status, err)
	s := metrics.Sample{
		Degraded: len(status.Degraded) > 0,
		Kernel: metrics.Kernel{
			Reading: reading, Programs: status.Datapath.Programs, Attachment: status.Datapath.Attachment, Outside: status.Datapath.Outside,
			Pins: status.Pins,
		},
		Waiting: a.waiting(),
		Source:  a.source.Sample(),
	}
	if p := status.Policies; p != nil {
		s.Policies = p.Count
	}
	if r := a.current(); r != nil {
		s.Stats, s.Reasons = r.Stats(), r.Reasons()
	}
	routes, sockets, flows := a.connections()
	s.Sockets = sockets.Stats()
	s.Conntrack, _ = flows.Stats()
	s.Routes, _ = routes.Stats()
	s.Monitor = a.hub.Stats()
	network := a.podNetwork()
	s.Pods, s.Fabric = network.Stats(), network.FabricStats()
	if status.PodNetwork != nil {
		s.Bandwidth = status.PodNetwork.Bandwidth
	}
	s.Rates, s.Sockmap = podnetwork.RateSamples(mapsDir(a.cfg), s.Pods), status.Sockmap
	if o := a.optOuts(); o != nil {
		s.OptOut = *o
		s.Stats.Damage += o.Damage
		s.Stats.Repaired += o.Mended
	}
	return s
}
