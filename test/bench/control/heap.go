package main

import (
	"fmt"
	"runtime"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/result"
)

// heap measures the memory that stays live: the objects and the reconciler's state, and nothing
// else.
func heap(services int) (result.Row, error) {
	before := live()
	store := model.NewStore("node-0")
	f := makeFleet(services, 1)
	f.deliver(store)
	r, err := newRig(store)
	if err != nil {
		return result.Row{}, err
	}
	defer r.close()
	if err := r.reconciler.Drain(); err != nil {
		return result.Row{}, err
	}
	f.services, f.slices = nil, nil
	row := result.Row{
		Row: "memory", Case: fmt.Sprintf("%d services x 1 endpoint", services), Metric: "bytes of live heap per service",
		Value: float64(live()-before) / float64(services), Goal: 1500,
	}
	row.Verdict = result.AtMost(row.Value, row.Goal)
	runtime.KeepAlive(r)
	return row, nil
}

func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
