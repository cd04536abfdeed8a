package reconcile

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// One tenant's many large Services do not delay another tenant's small one: it is served after the
// first pass, and the node counts as up to date as soon as everything that it knew had its turn.
func TestPassGivesWay(t *testing.T) {
	quota, namespace := defaultQuotas()
	store, r, _ := newQuotaNode(t, quota, namespace)
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
	if o := r.objects.known[key]; o == nil || len(o.services) != 1 {
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
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if stats := r.Stats(); len(r.objects.known) != 21 || stats.Pending != 0 {
		t.Errorf("%d objects are served, %d wait: want all 21", len(r.objects.known), stats.Pending)
	}
}

// A restart does everything in one pass. If it did not, a frontend that many want would lead to
// another until its owner's turn came.
func TestRestartWithManyObjectsWritesNothing(t *testing.T) {
	quota, namespace := defaultQuotas()
	store, r, tables := newQuotaNode(t, quota, namespace)
	fill := func(store *model.Store) {
		for i := range 20 {
			service, list := huge{ports: 40, endpoints: 500}.service("evil", fmt.Sprint("a", i), 1)
			set(store, service, list)
		}
	}
	fill(store)
	if err := r.Drain(); err != nil {
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
	if err := after.Drain(); err != nil {
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
		store, r, _ := newQuotaNode(t, lb.Quota{}, lb.Quota{Backends: 25})
		other, list := huge{ports: 1, endpoints: 20}.service("shop", "web", 9)
		set(store, other, list)
		for _, i := range order {
			service, list := huge{ports: 1, endpoints: 10}.service("evil", fmt.Sprint("s", i), int64(i))
			set(store, service, list)
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
			if used := r.objects.quotas.namespaces["evil"].used; used.Backends > 25 {
				t.Fatalf("order %v: %d backends are used", order, used.Backends)
			}
		}
		wantServed(t, r, "s0", "s1")
		store.DeleteService(model.Name{Namespace: "evil", Name: "s0"})
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		wantServed(t, r, "s1", "s2")
		if o := r.objects.known[model.Key{Kind: model.KindService, Name: other.Name}]; o == nil || len(o.services) != 1 {
			t.Errorf("order %v: the other namespace's Service is not served", order)
		}
		if use := r.Stats().Quotas[2]; use.Namespace != "evil" || use.Wanted <= 25 || use.Limit != 25 {
			t.Errorf("order %v: the namespace that wants most backends is said to be %+v", order, use)
		}
		for i := range 3 {
			store.DeleteService(model.Name{Namespace: "evil", Name: fmt.Sprint("s", i+1)})
		}
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if use := r.Stats().Quotas[2]; use != (QuotaUse{"backends", "shop", 20, 25}) {
			t.Errorf("order %v: without them it is said to be %+v", order, use)
		}
	}
}

func wantServed(t *testing.T, r *Reconciler, want ...string) {
	t.Helper()
	var got []string
	for i := range 4 {
		key := model.Key{Kind: model.KindService, Name: model.Name{Namespace: "evil", Name: fmt.Sprint("s", i)}}
		o := r.objects.known[key]
		switch {
		case o == nil:
		case len(o.services) > 0:
			got = append(got, key.Name.Name)
		case len(r.problems.byObject[key].list) != 1 || r.problems.byObject[key].list[0].Reason != "NamespaceQuotaExceeded":
			t.Errorf("%s is not served, and its problems are %v", key, r.problems.byObject[key].list)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v are served, want %v", got, want)
	}
}

// A tenant's many Services may wait for minutes. The node is healthy while passes do what they can,
// and is not once one fails.
func TestBacklogIsNoStandstill(t *testing.T) {
	quota, namespace := defaultQuotas()
	store, r, _ := newQuotaNode(t, quota, namespace)
	for i := range 20 {
		service, list := huge{ports: 40, endpoints: 500}.service("evil", fmt.Sprint("a", i), 1)
		set(store, service, list)
	}
	begun := time.Now()
	if err := r.Pass(); err != nil {
		t.Fatal(err)
	}
	long := begun.Add(-5 * time.Minute)
	for key := range r.backlog.late {
		r.backlog.late[key] = long
	}
	if err := r.Pass(); err != nil {
		t.Fatal(err)
	}
	if !store.Waiting().Equal(long) {
		t.Fatalf("the oldest change waits since %v, want %v", store.Waiting(), long)
	}
	stuck := r.Stuck()
	if stuck.Before(begun) {
		t.Errorf("nothing is said to have happened for %v, in which a pass was done", begun.Sub(stuck))
	}
	r.cfg.Grow = func(maps.Sizes) (*Tables, error) { return nil, errors.New("no memory") }
	large, list := huge{ports: 100, endpoints: 1000}.service("shop", "web", 1)
	set(store, large, list)
	if err := r.Pass(); err == nil {
		t.Fatal("a pass without memory succeeds")
	}
	if got := r.Stuck(); !got.Equal(stuck) {
		t.Errorf("after a pass that failed nothing is said to have happened since %v, want %v", got, stuck)
	}
}

// Services that their namespace has no room for cost next to nothing, even those whose tables take
// longest. Of two that do not fit together the older is served, whichever comes first.
func TestOverQuotaCostsLittle(t *testing.T) {
	quota, _ := defaultQuotas()
	store, r, _ := newQuotaNode(t, quota, lb.Quota{Slots: 300_000, Backends: 30_000})
	const each = 65521 // slots of a Maglev table of 200 backends
	for i := range 10 {
		service, list := huge{ports: 4, endpoints: 200, algorithm: "maglev", outside: true}.service("evil", fmt.Sprint("s", 9-i), int64(9-i))
		set(store, service, list)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
	}
	wantServed(t, r, "s0")
	for key, m := range r.objects.quotas.namespaces["evil"].members {
		if !m.served && (m.wants.Slots < each || m.wants.Backends < 200) {
			t.Errorf("%s is said to want only %+v", key, m.wants)
		}
	}
	before := r.stats.Compiled
	for _, key := range store.Keys() {
		store.MarkDirty(key)
	}
	if err := r.Pass(); err != nil {
		t.Fatal(err)
	}
	served := r.objects.quotas.namespaces["evil"].used
	if compiled := r.stats.Compiled - before; compiled != 10 || r.backlog.work > work(served)+9*objectWork {
		t.Errorf("%d objects are compiled at the cost of %d rows, want 10 at that of one, %d", compiled, r.backlog.work, work(served))
	}
}

// Services that share an address share rows for direct server return and pings. One that comes, each
// older than those before, is applied alone.
func TestSharedRowsMakeNobodyDue(t *testing.T) {
	store, r, _ := newQuotaNode(t, lb.Quota{}, lb.Quota{})
	r.cfg.Facts.VIPPing = true
	r.objects.compiler = lb.NewCompiler(r.cfg.Facts)
	const many = 200
	for i := range many {
		service, list := huge{ports: 1, endpoints: 1, outside: true}.service("shop", fmt.Sprint("s", i), int64(many-i))
		service.ClusterIPs = nil
		service.Ports[0].Port = uint16(1000 + i)
		set(store, service, list)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		store.DeleteService(model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)})
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
	}
	if compiled := r.Stats().Compiled; compiled > 3*many {
		t.Errorf("%d Services that come and go are compiled %d times, want once for each", many, compiled)
	}
	if len(r.frontends.keys) > 0 {
		t.Errorf("%d rows stay", len(r.frontends.keys))
	}
}
