package reconcile

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
)

// log is a Meter that records its calls.
type log struct {
	passes     int
	programmed map[model.Family]int
	took       []time.Duration
}

func (l *log) Pass(time.Duration) { l.passes++ }

func (l *log) Programmed(family model.Family, took time.Duration) {
	l.programmed[family]++
	l.took = append(l.took, took)
}

func metered(t *testing.T, store *model.Store, fail func(string) error) (*Reconciler, *log) {
	t.Helper()
	l := &log{programmed: map[model.Family]int{}}
	r := start(t, store, NewMemory(small), fail)
	r.cfg.Meter = l
	return r, l
}

func rolled(triggered time.Time, endpoints ...string) *model.Slice {
	s := &model.Slice{
		Name: model.Name{Namespace: "ns", Name: "web-1"}, Service: "web", Family: model.IPv4, Weight: 1,
		Ports: []model.SlicePort{{Port: 8080, Protocol: model.TCP}}, Triggered: triggered.UnixNano(),
	}
	for _, addr := range endpoints {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(addr), Conditions: model.Ready | model.Serving})
	}
	return s
}

func single() *model.Service {
	return &model.Service{
		Name: model.Name{Namespace: "ns", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.Port{{Port: 80, Protocol: model.TCP}},
	}
}

func TestProgrammedIsTheWholeWay(t *testing.T) {
	store := model.NewStore("node0")
	broken := true
	r, meter := metered(t, store, func(op string) error {
		if op == "grow" && broken {
			return errInjected
		}
		return nil
	})
	store.SetService(single())
	// More endpoints than fit, so that the first try fails.
	store.SetSlice(rolled(time.Now(), "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6"))
	if err := r.Pass(); err == nil {
		t.Fatal("the pass did not fail")
	}
	if len(meter.took) != 0 {
		t.Errorf("a change that is not in the maps was counted: %v", meter.took)
	}
	if store.Waiting().IsZero() || !r.Stats().LastApplied.IsZero() {
		t.Error("a failed pass counted as settled")
	}
	broken = false
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if want := map[model.Family]int{model.IPv4: 1}; !maps.Equal(meter.programmed, want) || meter.took[0] <= 0 {
		t.Errorf("programmed %v, took %v", meter.programmed, meter.took)
	}
	if meter.passes < 2 {
		t.Errorf("%d passes were counted", meter.passes)
	}
	if waiting := store.Waiting(); !waiting.IsZero() || r.Stats().LastApplied.IsZero() {
		t.Errorf("still waiting since %v", waiting)
	}

	store.SetSlice(rolled(time.Now().Add(time.Hour), "10.1.0.1")) // from a clock that is ahead
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if len(meter.took) != 2 || meter.took[1] != 0 {
		t.Errorf("took %v, want a second entry of 0", meter.took)
	}
}

func TestGraceIsShown(t *testing.T) {
	store := model.NewStore("node0")
	barrier := make(chan error)
	tables := NewMemory(small)
	r, err := New(Config{
		Store: store, Tables: tables, Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll},
		Barrier: func() error { return <-barrier },
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster := newRandomCluster(1)
	cluster.relist(store)
	pass := func() Stats {
		t.Helper()
		if err := r.Pass(); err != nil {
			t.Fatal(err)
		}
		return r.Stats()
	}
	store.SetService(single())
	store.SetSlice(rolled(time.Now(), "10.1.0.1", "10.1.0.2"))
	pass()
	store.SetSlice(rolled(time.Now(), "10.1.0.1"))
	began := pass().GraceSince
	if began.IsZero() {
		t.Fatal("a backend is gone but no grace period has started")
	}
	barrier <- errInjected
	if err := r.release(<-r.grace.done); err == nil {
		t.Fatal("the barrier did not fail")
	}
	if got := pass().GraceSince; !got.Equal(began) {
		t.Errorf("after a failed barrier the grace period began at %v, want %v", got, began)
	}
	barrier <- nil
	if err := r.release(<-r.grace.done); err != nil {
		t.Fatal(err)
	}
	if got := pass().GraceSince; !got.IsZero() {
		t.Errorf("the grace period since %v did not end with the barrier", got)
	}
}

func TestReasons(t *testing.T) {
	store := model.NewStore("node0")
	r, _ := metered(t, store, nil)
	bad := single()
	bad.Problems = []model.Problem{{Reason: "InvalidPort", Message: "a"}, {Reason: "InvalidPort", Message: "b"}, {Reason: "NoAddress"}}
	for _, tt := range []struct {
		problems []model.Problem
		want     map[string]int
	}{
		{bad.Problems, map[string]int{"InvalidPort": 2, "NoAddress": 1}},
		{bad.Problems[1:2], map[string]int{"InvalidPort": 1}},
		{nil, map[string]int{}},
	} {
		s := single()
		s.Problems = tt.problems
		store.SetService(s)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if got := r.Reasons(); !maps.Equal(got, tt.want) {
			t.Errorf("reasons are %v, want %v", got, tt.want)
		}
	}
	bad.UID = "again"
	store.SetService(bad)
	store.DeleteService(bad.Name)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if got := r.Reasons(); len(got) != 0 {
		t.Errorf("a deleted Service left the reasons %v", got)
	}
}
