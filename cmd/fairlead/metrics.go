package main

import (
	"fmt"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/observe"
)

// newMetrics returns what there is to scrape of an agent.
func newMetrics(a *agent) (*metrics.Metrics, error) {
	gauge, err := observe.NewGauge(datapath.MapsDir(a.cfg.BPFFS))
	if err != nil {
		return nil, fmt.Errorf("prepare metrics: %w", err)
	}
	b := currentBuild()
	build := metrics.Build{Version: b.Version, Commit: b.Commit, Go: b.Go, Kernel: b.Kernel}
	return metrics.New(build, func() metrics.Sample { return a.sample(gauge) }), nil
}

// sample reads what one scrape shows. It lists neither rows nor objects, so it costs the same however many there are.
func (a *agent) sample(gauge *observe.Gauge) metrics.Sample {
	var status observe.Status
	maps, counters, err := gauge.Read()
	status.Maps = maps
	a.complete(&status, err)
	s := metrics.Sample{
		Degraded: len(status.Degraded) > 0,
		Kernel:   metrics.Kernel{Counters: counters, Maps: maps, Programs: status.Datapath.Programs, Attachment: status.Datapath.Attachment},
		Waiting:  a.waiting(),
		Source:   a.source.sample(),
	}
	if r := a.current(); r != nil {
		s.Stats, s.Reasons = r.Stats(), r.Reasons()
	}
	if sweeper := a.currentSweeper(); sweeper != nil {
		s.Sockets = sweeper.Stats()
	}
	if o := a.optOuts(); o != nil {
		s.OptOut = *o
		s.Stats.Damage += o.Damage
		s.Stats.Repaired += o.Mended
	}
	return s
}
