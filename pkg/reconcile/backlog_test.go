package reconcile

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
)

// One tenant's many large Services do not delay another tenant's small one: it is served after the
// first pass, and the node counts as up to date as soon as everything that it knew had its turn.
func TestPassGivesWay(t *testing.T) {
	quota, namespace := defaultQuotas()
	store, r, _ := quotaWorld(t, quota, namespace)
	for i := range 20 {
		service, list := huge{ports: 40, endpoints: 500}.service("evil", fmt.Sprint("a", i), 1)
		set(store, service, list)
	}
	small, list := huge{ports: 1, endpoints: 2}.service("shop", "web", 1)
	set(store, small, list)
	if err := r.Pass(); err != nil {
		t.Fatal(err)
	}
	key := model.Key{Kind: model.KindService, Name: small.Name}
	if o := r.objects[key]; o == nil || len(o.services) != 1 {
		t.Error("the small Service is not served after the first pass")
	}
	left := len(r.backlog.late)
	if left == 0 || r.Stats().Pending < left {
		t.Fatalf("%d objects wait for their turn, and %d are reported: want some, all reported", left, r.Stats().Pending)
	}
	if store.Waiting().IsZero() {
		t.Error("nothing is said to be waiting")
	}
	for passes := 1; len(r.backlog.late) > 0; passes++ {
		if passes > 20 {
			t.Fatalf("%d objects still wait after %d passes", len(r.backlog.late), passes)
		}
		store.MarkDirty(model.Key{Kind: model.KindService, Name: model.Name{Namespace: "evil", Name: "a0"}}) // it never rests
		if err := r.Pass(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Settle(); err != nil {
		t.Fatal(err)
	}
	if stats := r.Stats(); len(r.objects) != 21 || stats.Pending != 0 {
		t.Errorf("%d objects are served, %d wait: want all 21", len(r.objects), stats.Pending)
	}
}

// A restart does everything in one pass. If it did not, a frontend that many want would lead to
// another until its owner's turn came.
func TestRestartWithManyObjectsWritesNothing(t *testing.T) {
	quota, namespace := defaultQuotas()
	store, r, tables := quotaWorld(t, quota, namespace)
	fill := func(store *model.Store) {
		for i := range 20 {
			service, list := huge{ports: 40, endpoints: 500}.service("evil", fmt.Sprint("a", i), 1)
			set(store, service, list)
		}
	}
	fill(store)
	if err := r.Settle(); err != nil {
		t.Fatal(err)
	}
	want := r.Stats()
	next := model.NewStore("node0")
	fill(next)
	next.ReplaceNodes(nil)
	next.ReplaceNamespaces(nil)
	next.ReplacePods(nil)
	after, err := New(Config{
		Store: next, Tables: tables(), Barrier: func() error { return nil }, Log: r.cfg.Log, Facts: r.cfg.Facts, NamespaceQuota: namespace, Grow: r.cfg.Grow,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := after.Pass(); err != nil { // not everything is known
		t.Fatal(err)
	}
	next.ReplaceServices(services(next))
	next.ReplaceSlices(endpointSlices(next))
	if err := after.Settle(); err != nil {
		t.Fatal(err)
	}
	if got := after.Stats(); got.Services != want.Services || got.Backends != want.Backends || got.Frontends != want.Frontends || got.Writes != 0 {
		t.Errorf("after the restart %d services, %d backends, %d frontends, %d writes: want %d, %d, %d and none",
			got.Services, got.Backends, got.Frontends, got.Writes, want.Services, want.Backends, want.Frontends)
	}
}

func services(store *model.Store) (list []*model.Service) {
	for _, key := range store.Keys() {
		service, _ := store.Service(key.Name)
		list = append(list, service)
	}
	return list
}

func endpointSlices(store *model.Store) (list []*model.Slice) {
	for _, key := range store.Keys() {
		_, some := store.Service(key.Name)
		list = append(list, some...)
	}
	return list
}

// The older Services of a namespace are served, in whatever order they come, and another namespace
// is none the worse. Room that one gives up goes to the next.
func TestNamespaceQuota(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
		store, r, _ := quotaWorld(t, lb.Quota{}, lb.Quota{Backends: 25})
		other, list := huge{ports: 1, endpoints: 20}.service("shop", "web", 9)
		set(store, other, list)
		for _, i := range order {
			service, list := huge{ports: 1, endpoints: 10}.service("evil", fmt.Sprint("s", i), int64(i))
			set(store, service, list)
			if err := r.Settle(); err != nil {
				t.Fatal(err)
			}
			if used := r.quotas.namespaces["evil"].used; used.Backends > 25 {
				t.Fatalf("order %v: %d backends are used", order, used.Backends)
			}
		}
		wantServed(t, r, "s0", "s1")
		store.DeleteService(model.Name{Namespace: "evil", Name: "s0"})
		if err := r.Settle(); err != nil {
			t.Fatal(err)
		}
		wantServed(t, r, "s1", "s2")
		if o := r.objects[model.Key{Kind: model.KindService, Name: other.Name}]; o == nil || len(o.services) != 1 {
			t.Errorf("order %v: the other namespace's Service is not served", order)
		}
	}
}

func wantServed(t *testing.T, r *Reconciler, want ...string) {
	t.Helper()
	var got []string
	for i := range 4 {
		key := model.Key{Kind: model.KindService, Name: model.Name{Namespace: "evil", Name: fmt.Sprint("s", i)}}
		o := r.objects[key]
		switch {
		case o == nil:
		case len(o.services) > 0:
			got = append(got, key.Name.Name)
		case len(r.problems[key].list) != 1 || r.problems[key].list[0].Reason != "NamespaceQuotaExceeded":
			t.Errorf("%s is not served, and its problems are %v", key, r.problems[key].list)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v are served, want %v", got, want)
	}
}
