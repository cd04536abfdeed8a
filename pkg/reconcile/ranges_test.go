package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func guardedWeb(ranges ...string) *model.Service {
	s := web("10.96.0.1")
	s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	for _, prefix := range ranges {
		s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(prefix))
	}
	return s
}

// watchedRanges reports every operation on the trie.
type watchedRanges struct {
	Ranges
	report func(op string, rows []maps.Range)
}

func (w watchedRanges) Insert(rows []maps.Range) error {
	w.report("insert", rows)
	return w.Ranges.Insert(rows)
}

func (w watchedRanges) Delete(rows []maps.Range) error {
	w.report("delete", rows)
	return w.Ranges.Delete(rows)
}

// TestRangesOrder checks that a service with ranges is never open to all clients: ranges are
// written before its flag and its frontends, and deleted after both.
func TestRangesOrder(t *testing.T) {
	store := model.NewStore("node0")
	store.FixServiceRanges(nil, true)
	r := start(t, store, NewMemory(small), nil)
	var log []string
	r.tables.Ranges = watchedRanges{r.tables.Ranges, func(op string, rows []maps.Range) {
		if len(rows) == 0 {
			return
		}
		frontends := 0
		_ = r.tables.Frontends.Each(func(maps.SvcKey, maps.Svc) { frontends++ })
		log = append(log, fmt.Sprintf("%s %d, flags %d, %d frontends", op, len(rows), r.tables.Services[1].Flags, frontends))
	}}
	deliver(store, []*model.Service{guardedWeb("10.0.0.0/8", "10.1.0.0/16")}, []*model.Slice{webSlice("10.1.0.1")})
	for _, step := range []struct {
		name string
		set  func()
		want []string
	}{
		{"new", func() {}, []string{"insert 2, flags 0, 0 frontends"}},
		{"the same", func() { store.SetService(guardedWeb("10.1.0.0/16", "10.0.0.0/8", "10.0.0.0/8")) }, nil},
		{"others", func() { store.SetService(guardedWeb("10.0.0.0/8", "192.0.2.0/24")) },
			[]string{"insert 1, flags 4, 2 frontends", "delete 1, flags 4, 2 frontends"}},
		{"none", func() { store.SetService(guardedWeb()) }, []string{"delete 2, flags 0, 2 frontends"}},
		{"again", func() { store.SetService(guardedWeb("192.0.2.0/24")) }, []string{"insert 1, flags 0, 2 frontends"}},
		{"no Service", func() { store.DeleteService(web("10.96.0.1").Name) }, []string{"delete 1, flags 4, 0 frontends"}},
	} {
		log = nil
		step.set()
		if err := r.Drain(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, log); diff != "" {
			t.Errorf("%s (-want +have):\n%s", step.name, diff)
		}
	}
}

// TestRangesThatCannotBeWritten checks that a Service which gets ranges lets nobody in while they
// cannot be written.
func TestRangesThatCannotBeWritten(t *testing.T) {
	store := model.NewStore("node0")
	var failing atomic.Value // a string; atomic since barriers run in the background
	failing.Store("")
	r := start(t, store, NewMemory(small), func(op string) error {
		if op == failing.Load() {
			return fmt.Errorf("%s: %w", op, errInjected)
		}
		return nil
	})
	deliver(store, []*model.Service{guardedWeb()}, []*model.Slice{webSlice("10.1.0.1")})
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	failing.Store("insert ranges")
	store.SetService(guardedWeb("10.0.0.0/8", "192.0.2.0/24"))
	if err := r.Pass(); !errors.Is(err, errInjected) {
		t.Fatalf("got error %v, want the injected one", err)
	}
	if flags := r.tables.Services[1].Flags; flags != maps.SourceRanges {
		t.Errorf("flags %d while the ranges are missing, want %d", flags, maps.SourceRanges)
	}
	failing.Store("")
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	both := meaning(t, r.tables)
	failing.Store("delete ranges") // after half of them are deleted
	store.SetService(guardedWeb())
	if err := r.Pass(); !errors.Is(err, errInjected) {
		t.Fatalf("got error %v, want the injected one", err)
	}
	failing.Store("")
	store.SetService(guardedWeb("10.0.0.0/8", "192.0.2.0/24"))
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(both, meaning(t, r.tables)); diff != "" {
		t.Errorf("wanted again after half of them were deleted:\n%s", diff)
	}
	failing.Store("delete ranges")
	store.DeleteService(web("10.96.0.1").Name)
	if err := r.Pass(); !errors.Is(err, errInjected) {
		t.Fatalf("got error %v, want the injected one", err)
	}
	if r.services.Used() != 2 { // including the reserved index 0
		t.Error("the index of a service that still has ranges is free")
	}
	failing.Store("")
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if said := meaning(t, r.tables); len(said) != 0 {
		t.Errorf("rows left: %v", said)
	}
}

// TestRangesAreVerified checks that missing ranges, extra ranges and ranges of no service are found
// and mended.
func TestRangesAreVerified(t *testing.T) {
	store := model.NewStore("node0")
	r := start(t, store, NewMemory(small), nil)
	deliver(store, []*model.Service{guardedWeb("10.0.0.0/8", "192.0.2.0/24")}, []*model.Slice{webSlice("10.1.0.1")})
	store.SetNode(insideNode("node1", "203.0.113.1", "10.244.1.0/24"))
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	want := meaning(t, r.tables)
	row := func(service uint32, prefix string) []maps.Range {
		return []maps.Range{{Service: service, Prefix: netip.MustParsePrefix(prefix)}}
	}
	for _, damage := range []struct {
		name, where, want, have string
		do                      func() error
	}{
		{"none", "", "", "", func() error { return nil }},
		{"missing", "shop/web:http/tcp4", "10.0.0.0/8", "no row; 1 of 2 are missing", func() error { return r.tables.Ranges.Delete(row(1, "10.0.0.0/8")) }},
		{"too many", "shop/web:http/tcp4", "no row", "0.0.0.0/0", func() error { return r.tables.Ranges.Insert(row(1, "0.0.0.0/0")) }},
		{"a node's, missing", whereInside, "203.0.113.1/32", "no row; 1 of 2 are missing",
			func() error { return r.tables.Ranges.Delete(row(maps.Inside, "203.0.113.1/32")) }},
		{"a ClusterIP's, missing", whereClusterIPs, "10.96.0.1/32", "no row; 1 of 1 are missing",
			func() error { return r.tables.Ranges.Delete(row(maps.ClusterIPs, "10.96.0.1/32")) }},
		{"no ClusterIP's", whereClusterIPs, "no row", "10.0.0.0/8", func() error { return r.tables.Ranges.Insert(row(maps.ClusterIPs, "10.0.0.0/8")) }},
		{"no node's", whereInside, "no row", "0.0.0.0/0", func() error { return r.tables.Ranges.Insert(row(maps.Inside, "0.0.0.0/0")) }},
		{"of nobody", "service 3", "no row", "0.0.0.0/0", func() error { return r.tables.Ranges.Insert(row(3, "0.0.0.0/0")) }},
	} {
		if err := damage.do(); err != nil {
			t.Fatal(err)
		}
		report := verify(t, r, true, nil)
		if damage.where == "" {
			if report.Found != 0 {
				t.Errorf("%s: %+v", damage.name, report)
			}
			continue
		}
		if report.Found != 1 || report.Mended != 1 {
			t.Fatalf("%s: %+v", damage.name, report)
		}
		if d := report.Differences[0]; d.Kind != "range" || d.Where != damage.where || d.Want != damage.want || d.Have != damage.have {
			t.Errorf("%s: %+v", damage.name, d)
		}
		if diff := cmp.Diff(want, meaning(t, r.tables)); diff != "" {
			t.Errorf("%s: not mended:\n%s", damage.name, diff)
		}
	}
}

// TestStrayRangesGoAtStart checks that no service inherits ranges: those of no service are deleted
// before their index is allocated.
func TestStrayRangesGoAtStart(t *testing.T) {
	store := model.NewStore("node0")
	tables := NewMemory(small)
	if err := tables.Ranges.Insert([]maps.Range{{Service: 1, Prefix: netip.MustParsePrefix("0.0.0.0/0")}}); err != nil {
		t.Fatal(err)
	}
	store.FixServiceRanges(nil, true)
	r := start(t, store, tables, nil)
	deliver(store, []*model.Service{guardedWeb("10.0.0.0/8")}, []*model.Slice{webSlice("10.1.0.1")})
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	_ = r.tables.Ranges.Each(func(row maps.Range) {
		if row.Prefix.String() != "10.0.0.0/8" {
			t.Errorf("stray range %v is still there", row.Prefix)
		}
	})
}
