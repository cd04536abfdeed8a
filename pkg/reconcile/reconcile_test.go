package reconcile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"unique"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// fresh returns what a Reconciler writes that has only seen the final objects.
func fresh(t *testing.T, w *randomCluster) map[string]string {
	t.Helper()
	store := model.NewStore("node0")
	w.relist(store)
	r := start(t, store, NewMemory(small), nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	return meaning(t, r.tables)
}

// TestRandomHistories plays lost, duplicated and reordered events with relists while operations
// fail, and checks that the maps depend on the final objects alone.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		w := newRandomCluster(seed)
		store := model.NewStore("node0")
		var percent atomic.Uint64
		percent.Store(seed % 3 * 15)
		// A barrier runs concurrently with the test, so it has a random source of its own: a seed
		// always gives the same history.
		others, barriers := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
		fail := func(op string) error {
			source := others
			if op == "barrier" {
				source = barriers
			}
			if source.Uint64N(100) < percent.Load() {
				return fmt.Errorf("%s: %w", op, errInjected)
			}
			return nil
		}
		w.relist(store)
		r := start(t, store, NewMemory(small), fail)
		r.beStrict()
		for range 400 {
			w.step(store, w.chance(10))
			if w.chance(3) {
				w.relist(store)
			}
			if w.chance(40) {
				_ = r.Pass() // injected failures are expected here
				r.cfg.RangeEpochs.(*watchedRangeEpochs).hold("a pass")
			}
			if r.grace.running && w.chance(50) {
				_ = r.release(<-r.grace.done)
			}
			if w.chance(3) { // the agent dies and another takes over
				if r.grace.running {
					<-r.grace.done
				}
				tables := *r.tables
				tables.Frontends = tables.Frontends.(*faults).Frontends
				tables.Ranges = tables.Ranges.(*rangeFaults).Ranges
				store = model.NewStore("node0")
				r = start(t, store, &tables, fail)
				r.beStrict()
				_ = r.Pass() // before the sources have delivered
				w.relist(store)
			}
		}
		w.relist(store)
		percent.Store(0)
		if r.grace.running {
			_ = r.release(<-r.grace.done) // it may have failed on purpose
		}
		if err := r.Drain(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(fresh(t, w), meaning(t, r.tables)); diff != "" {
			t.Fatalf("seed %d: the maps depend on their history (-fresh +this):\n%s", seed, diff)
		}
		if r.cfg.RangeEpochs.(*watchedRangeEpochs).hold("the end"); r.rangeEpochs.begun {
			t.Fatalf("seed %d: a change of the allowed clients never ended", seed)
		}
		if left := len(r.frontends.touched) + len(r.retired) + len(r.objects.failed); left != 0 {
			t.Fatalf("seed %d: %d keys and services left to do after settling", seed, left)
		}
	}
}

func web(clusterIP string) *model.Service {
	return &model.Service{
		Name: model.Name{Namespace: "shop", Name: "web"}, UID: "a", Created: 1,
		ClusterIPs: []netip.Addr{netip.MustParseAddr(clusterIP)},
		Ports:      []model.Port{{Name: "http", Port: 80, Protocol: model.TCP}},
	}
}

func webSlice(addrs ...string) *model.Slice {
	s := &model.Slice{
		Name: model.Name{Namespace: "shop", Name: "web-1"}, Service: "web", Family: model.IPv4, Weight: 1,
		Ports: []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}},
	}
	for _, addr := range addrs {
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Addr: netip.MustParseAddr(addr), Node: unique.Make("node1"), Conditions: model.Ready | model.Serving,
		})
	}
	return s
}

func deliver(store *model.Store, services []*model.Service, list []*model.Slice) {
	store.ReplaceServices(services)
	store.ReplaceSlices(list)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(nil)
}

func TestRestartWithNothingChangedWritesNothing(t *testing.T) {
	w := newRandomCluster(3)
	store := model.NewStore("node0")
	for range 200 {
		w.step(store, true)
	}
	w.relist(store)
	r := start(t, store, NewMemory(small), nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if r.Stats().Services < 5 {
		t.Fatalf("only %d services: the test would prove little", r.Stats().Services)
	}
	before := *r.tables
	before.Services, before.Slots = slices.Clone(before.Services), slices.Clone(before.Slots)
	before.Backends, before.Names = slices.Clone(before.Backends), slices.Clone(before.Names)

	again := model.NewStore("node0")
	tables := *r.tables
	forbidden := func(op string) error {
		if op == "range_epochs" { // the new agent does not know what RangeEpochs was told before
			return nil
		}
		return fmt.Errorf("%s during a restart with nothing changed", op)
	}
	tables.Frontends = tables.Frontends.(*faults).Frontends
	r2 := start(t, again, &tables, forbidden)
	w.relist(again)
	if err := r2.Drain(); err != nil {
		t.Fatal(err)
	}
	if n := r2.Stats().Writes; n != 0 {
		t.Errorf("the restart wrote %d rows", n)
	}
	for what, same := range map[string]bool{
		"services": slices.Equal(before.Services, r2.tables.Services),
		"slots":    slices.Equal(before.Slots, r2.tables.Slots),
		"backends": slices.Equal(before.Backends, r2.tables.Backends),
		"names":    slices.Equal(before.Names, r2.tables.Names),
	} {
		if !same {
			t.Errorf("the restart changed %s", what)
		}
	}
}

func TestNothingIsDeletedBeforeTheSync(t *testing.T) {
	store := model.NewStore("node0")
	deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1", "10.1.0.2")})
	r := start(t, store, NewMemory(small), nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	want := meaning(t, r.tables)

	again := model.NewStore("node0")
	tables := *r.tables
	tables.Frontends = tables.Frontends.(*faults).Frontends
	r = start(t, again, &tables, nil)
	again.ReplaceServices([]*model.Service{web("10.96.0.1")})
	again.SetSlice(webSlice("10.1.0.1")) // the first of several
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, meaning(t, r.tables)); diff != "" {
		t.Errorf("an incomplete source changed the maps (-before +after):\n%s", diff)
	}
	deliver(again, nil, nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if left := meaning(t, r.tables); len(left) != 0 {
		t.Errorf("rows left after everything was deleted: %v", left)
	}
}

// TestEveryFailureConverges fails each kind of operation at each of its first occurrences.
func TestEveryFailureConverges(t *testing.T) {
	for _, op := range []string{"insert", "update", "delete", "barrier", "grow", "insert ranges", "delete ranges", "range_epochs"} {
		for nth := range 4 {
			w := newRandomCluster(11)
			store := model.NewStore("node0")
			w.relist(store)
			seen, failed := 0, false
			r := start(t, store, NewMemory(small), func(which string) error {
				if which != op {
					return nil
				}
				seen++
				if seen-1 == nth {
					failed = true
					return errInjected
				}
				return nil
			})
			for range 300 {
				w.step(store, false)
				if r.Drain() != nil {
					// Run retries likewise after its back-off.
					_ = r.Drain()
				}
			}
			if !failed {
				t.Fatalf("%s %d never happened", op, nth)
			}
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(fresh(t, w), meaning(t, r.tables)); diff != "" {
				t.Errorf("%s %d: not converged (-fresh +this):\n%s", op, nth, diff)
			}
		}
	}
}

// TestIndexesWaitForReaders checks that the row of a deleted service, the row of a deleted backend
// and the element of a deleted frontend are not reused before a barrier has passed.
func TestIndexesWaitForReaders(t *testing.T) {
	store := model.NewStore("node0")
	deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1")})
	r := start(t, store, NewMemory(maps.Sizes{Svcs: 1, Services: 2, Slots: 4, Backends: 1}), nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	store.DeleteService(model.Name{Namespace: "shop", Name: "web"})
	other := web("10.96.0.2")
	other.Name.Name = "api"
	if err := r.Pass(); err != nil { // the barrier runs, but has not been collected
		t.Fatal(err)
	}
	store.SetService(other)
	slice := webSlice("10.1.0.9")
	slice.Name.Name, slice.Service = "api-1", "api"
	store.SetSlice(slice)
	if err := r.Pass(); err != nil {
		t.Fatal(err)
	}
	if n := r.Stats().Growths; n == 0 {
		t.Error("rows were reused while a reader might hold them")
	}
	if r.frontends.present != 0 {
		t.Error("a frontend was inserted while a reader might hold the deleted element")
	}
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if r.frontends.present != 1 {
		t.Error("the frontend was not inserted after the barrier")
	}
}

// TestAffinityIsForgotten checks that clients are forgotten when their service's affinity is switched
// off, and with the service, but neither when it is switched on or changed nor by a restart.
func TestAffinityIsForgotten(t *testing.T) {
	store := model.NewStore("node0")
	service := web("10.96.0.1")
	deliver(store, []*model.Service{service}, []*model.Slice{webSlice("10.1.0.1")})
	tables := NewMemory(maps.Sizes{Svcs: 4, Services: 2, Slots: 8, Backends: 4})
	r := start(t, store, tables, nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name    string
		seconds uint32
		begins  bool
	}{
		{"on", 60, false},
		{"longer", 120, false},
		{"off", 0, true},
		{"still off", 0, false},
		{"on again", 60, false},
	} {
		was := tables.Services[1].AffinityEpoch
		changed := *service
		changed.AffinitySeconds = step.seconds
		store.SetService(&changed)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		row := tables.Services[1]
		if row.AffinitySeconds != step.seconds || (row.AffinityEpoch != was) != step.begins {
			t.Errorf("%s: %d seconds in epoch %d, before it was %d", step.name, row.AffinitySeconds, row.AffinityEpoch, was)
		}
	}

	was := tables.Services[1].AffinityEpoch
	r = start(t, store, tables, nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if got := tables.Services[1].AffinityEpoch; got != was {
		t.Errorf("a restart led from epoch %d to %d", was, got)
	}
	store.DeleteService(service.Name)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	store.SetService(service)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if got := tables.Services[1].AffinityEpoch; got == was {
		t.Errorf("the next service in the row is still in epoch %d", got)
	}
}

func TestOldestServiceOwnsAFrontend(t *testing.T) {
	old, young := web("10.96.0.1"), web("10.96.0.2")
	old.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	young.ExternalIPs = old.ExternalIPs
	young.Name.Name, young.UID, young.Created = "young", "0", 2
	for _, order := range [][]*model.Service{{old, young}, {young, old}} {
		store := model.NewStore("node0")
		deliver(store, nil, nil)
		r := start(t, store, NewMemory(small), nil)
		for _, s := range order {
			store.SetService(s)
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
		}
		if got := meaning(t, r.tables)["203.0.113.1:80/6"]; got != "shop/web:http/tcp4 ExternalIP" {
			t.Errorf("owner is %q, want the older Service", got)
		}
		problems := r.Problems()[model.Key{Name: young.Name}]
		if len(problems) != 1 || problems[0].Reason != "FrontendConflict" {
			t.Errorf("the loser's problems are %v", problems)
		}
		store.DeleteService(old.Name)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if got := meaning(t, r.tables)["203.0.113.1:80/6"]; got != "shop/young:http/tcp4 ExternalIP" {
			t.Errorf("owner after the winner went is %q", got)
		}
		if left := r.Problems(); len(left) != 0 {
			t.Errorf("problems left: %v", left)
		}
	}
}

func TestNodePortBeatsHostPort(t *testing.T) {
	service := web("10.96.0.1")
	service.Created = 100
	service.Ports[0].NodePort = 30080
	for _, host := range []string{"", "192.0.2.1", "127.0.0.1"} {
		pod := &model.Pod{
			Name: model.Name{Namespace: "shop", Name: "pod"}, UID: "p", Created: 1,
			Addrs:     []netip.Addr{netip.MustParseAddr("10.1.0.7")},
			HostPorts: []model.HostPort{{Port: 30080, ContainerPort: 80, Protocol: model.TCP}},
		}
		row := "0.0.0.0:30080/6"
		if host != "" {
			pod.HostPorts[0].HostIP = netip.MustParseAddr(host)
			row = host + ":30080/6"
		}
		store := model.NewStore("node0")
		store.SetLocal(slices.Values([]netip.Addr{netip.MustParseAddr("192.0.2.1")}))
		deliver(store, nil, nil)
		r := start(t, store, NewMemory(small), nil)
		settle := func() map[string]string {
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
			return meaning(t, r.tables)
		}
		store.SetPod(pod)
		if got := settle()[row]; got == "" {
			t.Errorf("host %q: no row before the NodePort came", host)
		}
		store.SetService(service)
		said := settle()
		if got := said["0.0.0.0:30080/6"]; got != "shop/web:http/tcp4 NodePort" {
			t.Errorf("host %q: the wildcard row is %q", host, got)
		}
		if got := said[row]; host != "" && got != "" {
			t.Errorf("host %q: the host port still shadows the NodePort: %q", host, got)
		}
		if len(r.Problems()[model.Key{Kind: model.KindPod, Name: pod.Name}]) != 1 {
			t.Errorf("host %q: the pod's problems are %v", host, r.Problems())
		}
		store.DeleteService(service.Name)
		if got := settle()[row]; got == "" {
			t.Errorf("host %q: the host port did not come back", host)
		}
	}
}
