package agent

import (
	"fmt"
	"maps"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/observe"
)

// prepareMetrics prepares what a scrape shows.
func (a *agent) prepareMetrics() (err error) {
	if a.gauge, err = mapstats.NewReader(datapath.MapsDir(a.cfg.BPFFS)); err != nil {
		return fmt.Errorf("prepare metrics: %w", err)
	}
	a.metrics = metrics.New(a.build, a.sample)
	return nil
}

// measure returns the state of the maps, with the numbers of rows that the agent itself counts.
func (a *agent) measure() (mapstats.Reading, error) {
	reading, err := a.gauge.Read()
	if err != nil {
		return reading, err
	}
	used := map[string]int{}
	if r := a.reconciler.Load(); r != nil {
		stats := r.Stats()
		used = map[string]int{
			"svcs": stats.Frontends, "services": stats.Services, "names": stats.Services, "slots": stats.Slots, "backends": stats.Backends,
		}
	}
	if stats, _ := a.flows.Load().Stats(); !stats.LastPass.IsZero() {
		used["ct"] = stats.Rows[0]
	}
	if state := a.enforcer.state(a.network.Load().Devices()); state != nil {
		maps.Copy(used, state.Rows)
	}
	for i := range reading.Maps {
		if n, ok := used[reading.Maps[i].Name]; ok {
			reading.Maps[i].SetEntries(n)
		}
	}
	return reading, nil
}

// sample reads what one scrape shows. It lists neither rows nor objects, so its cost does not
// depend on their number. Exceptions are pods with a rate, each of which it shows, the counts of denials, of
// which there are few thousand at most, and maps whose rows programs make, which are counted now and then.
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
		Waiting: a.readiness.waiting(),
		Source:  a.source.Sample(),
	}
	if p := status.Policies; p != nil {
		s.Policies = p.Count
	}
	s.Enforced, s.Denials = a.enforcer.state(a.network.Load().Devices()), a.enforcer.denials(datapath.MapsDir(a.cfg.BPFFS))
	if r := a.reconciler.Load(); r != nil {
		s.Stats, s.Reasons = r.Stats(), r.Reasons()
	}
	s.Sockets = a.sockets.Load().Stats()
	s.Conntrack, _ = a.flows.Load().Stats()
	s.Routes, _ = a.routes.Load().Status()
	s.Monitor = a.monitors.hub.Stats()
	network := a.network.Load()
	s.Pods, s.Fabric = network.Stats(), network.FabricStatus()
	if status.PodNetwork != nil {
		s.Bandwidth = status.PodNetwork.Bandwidth
	}
	s.Rates, s.Sockmap = podnetwork.RateSamples(datapath.MapsDir(a.cfg.BPFFS), s.Pods), status.Sockmap
	if status.OptOut != nil {
		s.OptOut = *status.OptOut
	}
	s.Stats.Damage += s.OptOut.Damage
	s.Stats.Repaired += s.OptOut.Mended
	return s
}
