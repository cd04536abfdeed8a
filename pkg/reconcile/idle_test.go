package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
)

// reasons lists the reasons of an object's problems.
func reasons(r *Reconciler, key model.Key) []string {
	var list []string
	for _, p := range r.Problems()[key] {
		list = append(list, p.Reason)
	}
	return list
}

// A Service without endpoints is reported, but not at once, and not repeatedly.
func TestIdle(t *testing.T) {
	store := model.NewStore("node1")
	r := start(t, store, NewMemory(small), nil)
	reports := 0
	r.cfg.Report = func(model.Key, string, model.Problem) { reports++ }
	service, ready, gone := web("10.96.0.1"), webSlice("10.1.0.1"), webSlice()
	key := model.Key{Kind: model.KindService, Name: service.Name}
	terminating := webSlice("10.1.0.1")
	terminating.Endpoints[0].Conditions = model.Serving | model.Terminating
	onlyHere := web("10.96.0.1")
	onlyHere.InternalLocal = true
	elsewhere := webSlice("10.1.0.1")
	elsewhere.Endpoints[0].Node = model.Label{}
	deliver(store, []*model.Service{service}, nil)
	const none = "NoEndpoints"
	for _, step := range []struct {
		name    string
		do      func()
		after   time.Duration
		want    []string
		reports int // in total
	}{
		{"a new Service", func() {}, 0, nil, 0},
		{"a little later", func() {}, 59 * time.Second, nil, 0},
		{"much later", func() {}, 61 * time.Second, []string{none}, 1},
		{"later still", func() {}, time.Hour, []string{none}, 1},
		{"changed for another reason", func() { store.SetService(web("10.96.0.2")) }, time.Hour, []string{none}, 1},
		{"an endpoint", func() { store.SetSlice(ready) }, time.Hour, nil, 1},
		{"one that terminates, but serves", func() { store.SetSlice(terminating) }, time.Hour, nil, 1},
		{"gone for a moment", func() { store.SetSlice(gone) }, time.Second, nil, 1},
		{"back", func() { store.SetSlice(ready) }, time.Hour, nil, 1},
		{"gone for long", func() { store.SetSlice(gone) }, time.Hour, []string{none}, 2},
		{"served by this node alone, which has none", func() { store.SetService(onlyHere); store.SetSlice(elsewhere) }, time.Hour, nil, 2},
		{"no Service", func() { store.DeleteService(service.Name) }, time.Hour, nil, 2},
	} {
		step.do()
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		r.markIdle(time.Now().Add(step.after))
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, reasons(r, key)); diff != "" || reports != step.reports {
			t.Errorf("%s: reported %d times, want %d; problems (-want +have):\n%s", step.name, reports, step.reports, diff)
		}
	}
	if len(r.idle) > 0 {
		t.Errorf("%d Services are still recorded as idle", len(r.idle))
	}
}

// If many Services have no endpoints, a few are reported at a time, and none before the endpoints
// were read.
func TestManyIdle(t *testing.T) {
	store := model.NewStore("node1")
	r := start(t, store, NewMemory(small), nil)
	var services []*model.Service
	for i := range maxIdle + 5 {
		s := web(fmt.Sprintf("10.96.0.%d", 1+i))
		s.Name.Name = fmt.Sprint("web", i)
		services = append(services, s)
	}
	store.ReplaceServices(services)
	late := time.Now().Add(time.Hour)
	for _, want := range []int{0, maxIdle, maxIdle + 5, maxIdle + 5} {
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		r.markIdle(late)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if have := len(r.Problems()); have != want {
			t.Errorf("%d Services were reported, want %d", have, want)
		}
		deliver(store, services, nil)
	}
}
