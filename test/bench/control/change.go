package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

const (
	changeRounds  = 15
	changesARun   = 400
	changeTimeout = 5 * time.Second

	median = "us, median"
	tail   = "us, p99"

	// tailGoal is the time in microseconds that 99 of 100 changes may take. calm is how late a
	// process that only sleeps may be woken if the machine is to be fit for judging that.
	tailGoal, calm = 1000, 300
)

// changes is an agent with many services, one of which changes at a time.
type changes struct {
	rig   *rig
	words []*uint64
	made  int
	stop  context.CancelFunc
	ended chan error
}

// endpoints is the number of endpoints of each service.
const endpoints = 3

func startChanges(services int) (*changes, error) {
	store := model.NewStore("node-0")
	makeFleet(services, endpoints).deliver(store)
	r, err := newRig(store)
	if err != nil {
		return nil, err
	}
	if err := r.reconciler.Drain(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &changes{rig: r, words: indexWords(r.tables, services), stop: stop, ended: make(chan error, 1)}
	go func() { c.ended <- r.reconciler.Run(ctx) }()
	return c, nil
}

func (c *changes) close() error {
	c.stop()
	return errors.Join(<-c.ended, c.rig.close())
}

func (c *changes) String() string {
	return fmt.Sprintf("%d services x %d endpoints", len(c.words), endpoints)
}

// run makes changes one at a time while the agent sleeps. It measures from the object's arrival in
// the store until the word that the programs load is stored.
func (c *changes) run(context.Context) (round.Sample, error) {
	took := make([]float64, changesARun)
	for i := range took {
		var err error
		if took[i], err = c.one(); err != nil {
			return round.Sample{}, err
		}
		time.Sleep(100 * time.Microsecond)
	}
	return sampleOf(took), nil
}

// one makes a change and returns the microseconds until it is visible. The set of endpoints changes
// by one, as in a rollout.
func (c *changes) one() (float64, error) {
	n := c.made * 7919 % len(c.words)
	slice := makeSlice(n, endpoints, 0)
	if c.made/len(c.words)%2 == 0 {
		slice.Endpoints = slice.Endpoints[:endpoints-1]
	}
	c.made++
	was := atomic.LoadUint64(c.words[n])
	start := time.Now()
	c.rig.store.SetSlice(slice)
	for atomic.LoadUint64(c.words[n]) == was {
		if time.Since(start) > changeTimeout {
			return 0, fmt.Errorf("change of service %d did not become visible", n)
		}
		runtime.Gosched()
	}
	return micros(time.Since(start)), nil
}

// sampleOf converts the times of single operations, in microseconds, to a sample.
func sampleOf(took []float64) round.Sample {
	var all float64
	for _, t := range took {
		all += t
	}
	n := uint64(len(took))
	slices.Sort(took)
	return round.Sample{
		Claimed: n, Arrived: n, Took: time.Duration(all * float64(time.Microsecond)),
		Values: map[string]float64{median: round.Quantile(took, 0.5), tail: round.Quantile(took, 0.99)},
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// measureChanges measures changes with each number of services, smallest first.
func measureChanges(ctx context.Context, report *result.Report, services []int) (err error) {
	var variants []round.Variant
	var all []*changes
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.close())
		}
	}()
	for _, n := range services {
		c, err := startChanges(n)
		if err != nil {
			return fmt.Errorf("%d services: %w", n, err)
		}
		all = append(all, c)
		variants = append(variants, round.Variant{Name: c.String(), Run: c.run})
	}
	raw := rawUpdates(all[len(all)-1].rig.tables, changesARun)
	series, err := round.Run(ctx, round.Plan{
		Variants: append(variants, raw, round.Variant{Name: "sleeping process", Run: sleepARun}),
		Rounds:   changeRounds, WarmUp: 1, Out: report.Out(),
	})
	if err != nil {
		return err
	}
	for _, v := range variants {
		if err := addChangeRow(report, series, v.Name, variants[0].Name, raw.Name); err != nil {
			return err
		}
	}
	return nil
}

// addChangeRow asks whether a change costs a small multiple of a raw update, as little with many
// services as with few, and whether hardly any change takes long.
func addChangeRow(report *result.Report, series *round.Series, name, smallest, raw string) error {
	questions := []round.Question{
		{Row: "change, object to visible", Case: name, Metric: median, Variant: name, Yardstick: raw, Goal: 40},
	}
	if name != smallest {
		questions = append(questions, round.Question{
			Row: "change, against few services", Case: name, Metric: median, Variant: name, Yardstick: smallest, Goal: 1.5,
		})
	}
	if err := series.Report(report, questions...); err != nil {
		return err
	}
	row, detail, err := series.Evaluate(round.Question{
		Row: "change, object to visible", Case: name, Metric: tail, Variant: name, Yardstick: "sleeping process",
		Goal: tailGoal, OnValue: true,
	})
	if err != nil {
		return err
	}
	if row.Yardstick >= calm {
		row.Verdict = result.Inconclusive
		detail.Why = "a process that only sleeps is woken late on this machine"
	}
	report.AddMeasured(row, detail)
	return nil
}

// indexWords returns the word of every service of a fleet.
func indexWords(t *maps.Tables, services int) []*uint64 {
	words := make([]*uint64, services)
	_ = t.Svcs.Each(func(key maps.SvcKey, row maps.Svc) {
		b := maps.NetipOf(key.Addr).As4()
		words[int(b[1])<<16|int(b[2])<<8|int(b[3])] = &t.Services[row.Service].Words[maps.ScopeAll]
	})
	return words
}

// rawUpdates is the yardstick: a BPF_MAP_UPDATE_ELEM that writes a row back unchanged.
func rawUpdates(t *maps.Tables, n int) round.Variant {
	return round.Variant{Name: "raw map update", Run: func(context.Context) (round.Sample, error) {
		took := make([]float64, n)
		for i := range took {
			key := maps.KeyOf(address(11, i%100), 80, model.TCP)
			row, found, err := t.Svcs.Lookup(key)
			if err != nil || !found {
				return round.Sample{}, fmt.Errorf("look up a row for the yardstick: found %v: %w", found, err)
			}
			start := time.Now()
			if err := t.Svcs.Update(key, row); err != nil {
				return round.Sample{}, fmt.Errorf("update a row for the yardstick: %w", err)
			}
			took[i] = micros(time.Since(start))
		}
		return sampleOf(took), nil
	}}
}
