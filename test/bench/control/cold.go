package main

import (
	"fmt"
	"runtime"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/result"
)

// cold measures from objects in memory to all maps written.
func cold(services, endpoints int, goal float64) ([]result.Row, error) {
	f := makeFleet(services, endpoints)
	var best, raw float64
	for range 3 {
		store := model.NewStore("node-0")
		runtime.GC()
		start := time.Now()
		f.deliver(store)
		delivered := time.Since(start)
		r, err := newRig(store) // the making of the maps is not what is measured
		if err != nil {
			return nil, err
		}
		start = time.Now()
		if err := r.reconciler.Settle(); err != nil {
			return nil, err
		}
		took := (delivered + time.Since(start)).Seconds()
		if got := r.reconciler.Stats(); got.Frontends != services || got.Backends != services*endpoints {
			return nil, fmt.Errorf("%d frontends and %d backends were written, want %d and %d",
				got.Frontends, got.Backends, services, services*endpoints)
		}
		if best == 0 || took < best {
			best = took
		}
		var updates []float64
		for i := range 2_000 {
			updates = append(updates, rawUpdate(r.tables, i))
		}
		raw = quantile(updates, 0.5)
		r.close()
	}
	name := fmt.Sprintf("%d services x %d endpoints", services, endpoints)
	perService := result.Row{
		Row: "cold load", Case: name, Metric: "us per service", Value: best / float64(services) * 1e6,
		Yardstick: raw, Goal: goal / float64(services) * 1e6,
	}
	perService.Verdict = result.AtMost(perService.Value, perService.Goal)
	whole := result.Row{Row: "cold load", Case: name, Metric: "s, objects to maps", Value: best, Goal: goal}
	whole.Verdict = result.AtMost(whole.Value, whole.Goal)
	return []result.Row{perService, whole}, nil
}
