package main

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/result"
)

// change measures from the object's arrival in the store to the store of the word that the programs load.
func change(services int) ([]result.Row, error) {
	const rounds, endpoints = 5_000, 3
	store := model.NewStore("node-0")
	makeFleet(services, endpoints).deliver(store)
	r, err := newRig(store)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.reconciler.Settle(); err != nil {
		return nil, err
	}
	words := indexWords(r.tables, services)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.reconciler.Run(ctx) }()

	control, err := startSleeper()
	if err != nil {
		return nil, err
	}
	var took, raw []float64
	for round := range rounds {
		i := round * 7919 % services
		// One endpoint fewer or one more: the set changes, as in a rollout.
		slice := makeSlice(i, endpoints, 0)
		if round/services%2 == 0 {
			slice.Endpoints = slice.Endpoints[:endpoints-1]
		}
		word := words[i]
		was := atomic.LoadUint64(word)
		start := time.Now()
		store.SetSlice(slice)
		for atomic.LoadUint64(word) == was {
			if time.Since(start) > 5*time.Second {
				return nil, fmt.Errorf("change of service %d did not become visible", i)
			}
			runtime.Gosched()
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/1e3)
		raw = append(raw, rawUpdate(r.tables, round))
		time.Sleep(100 * time.Microsecond) // changes come one at a time, to an agent that sleeps
	}
	late, err := control.p99()
	if err != nil {
		return nil, err
	}
	cancel()
	if err := <-done; err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%d services x %d endpoints", services, endpoints)
	yardstick := quantile(raw, 0.5)
	median := result.Row{
		Row: "change", Case: name, Metric: "us, object to visible, median", Value: quantile(took, 0.5),
		Yardstick: yardstick, Ratio: quantile(took, 0.5) / yardstick, Goal: 40,
	}
	median.Verdict = result.AtMost(median.Ratio, median.Goal)
	tail := result.Row{
		Row: "change", Case: name, Metric: "us, object to visible, p99", Value: quantile(took, 0.99),
		Yardstick: late, Goal: 1000,
	}
	tail.Verdict = result.AtMost(tail.Value, tail.Goal)
	if late >= 300 {
		tail.Verdict = result.Inconclusive // a process that only sleeps is as late on this machine
	}
	return []result.Row{median, tail}, nil
}

// indexWords finds the word of every service of a fleet.
func indexWords(t *maps.Tables, services int) []*uint64 {
	words := make([]*uint64, services)
	_ = t.Svcs.Each(func(key maps.SvcKey, row maps.Svc) {
		b := maps.NetipOf(key.Addr).As4()
		words[int(b[1])<<16|int(b[2])<<8|int(b[3])] = &t.Services[row.Service].Words[maps.ScopeAll]
	})
	return words
}

// rawUpdate times one BPF_MAP_UPDATE_ELEM of a row as it is.
func rawUpdate(t *maps.Tables, n int) float64 {
	key := maps.KeyOf(address(11, n%1000), 80, model.TCP)
	row, _, err := t.Svcs.Lookup(key)
	if err != nil {
		return 0
	}
	start := time.Now()
	if err := t.Svcs.Update(key, row); err != nil {
		return 0
	}
	return float64(time.Since(start).Nanoseconds()) / 1e3
}
