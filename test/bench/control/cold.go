package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// coldStart is the start of an agent with the given number of services, none of which is in the
// maps.
type coldStart struct {
	services, endpoints int
	goal                time.Duration // per service
}

func (c coldStart) String() string {
	return fmt.Sprintf("%d services x %d endpoints", c.services, c.endpoints)
}

// variant measures the time per service from objects in memory to all maps written. Creating the
// maps is not included.
func (c coldStart) variant() round.Variant {
	f := makeFleet(c.services, c.endpoints)
	return round.Variant{Name: c.String(), Run: func(context.Context) (_ round.Sample, err error) {
		store := model.NewStore("node-0")
		runtime.GC()
		start := time.Now()
		f.deliver(store)
		took := time.Since(start)
		r, err := newRig(store)
		if err != nil {
			return round.Sample{}, err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		start = time.Now()
		if err := r.reconciler.Drain(); err != nil {
			return round.Sample{}, err
		}
		took += time.Since(start)
		stats := r.reconciler.Stats()
		if stats.Backends != c.services*c.endpoints {
			return round.Sample{}, fmt.Errorf("%d backends were written, want %d", stats.Backends, c.services*c.endpoints)
		}
		return round.Sample{Claimed: uint64(c.services), Arrived: uint64(stats.Frontends), Took: took}, nil
	}}
}

// measureCold measures starts beside raw updates of an existing map.
func measureCold(ctx context.Context, report *result.Report, starts []coldStart) (err error) {
	store := model.NewStore("node-0")
	makeFleet(changesARun, 1).deliver(store)
	r, err := newRig(store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.reconciler.Drain(); err != nil {
		return err
	}
	raw := rawUpdates(r.tables, 100*changesARun)
	variants := []round.Variant{raw}
	for _, c := range starts {
		variants = append(variants, c.variant())
	}
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: round.MinRounds, Out: report.Out()})
	if err != nil {
		return err
	}
	for _, c := range starts {
		question := round.Question{
			Row: "cold start, for a service", Case: c.String(), Metric: round.Wall, Variant: c.String(), Yardstick: raw.Name,
			Goal: float64(c.goal.Nanoseconds()), OnValue: true,
		}
		if err := series.Report(report, question); err != nil {
			return err
		}
	}
	return nil
}
