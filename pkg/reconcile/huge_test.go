package reconcile

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unique"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// defaultQuotas are those of the options.
func defaultQuotas() (service, namespace lb.Quota) {
	return lb.Quota{Frontends: 16384, Hosted: 32768, Backends: 131072, Slots: 1048576},
		lb.Quota{Frontends: 262144, Hosted: 262144, Backends: 1048576, Slots: 16777216}
}

// huge is a Service that a tenant may write: every port leads to every endpoint.
type huge struct {
	ports, endpoints int
	algorithm        string
	outside          bool
	addresses        int
}

func (h huge) service(namespace, name string, created int64) (*model.Service, []*model.Slice) {
	s := &model.Service{
		Name: model.Name{Namespace: namespace, Name: name}, UID: name, Created: created, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Algorithm: h.algorithm,
	}
	if h.outside {
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	}
	for i := range h.addresses {
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	var list []*model.Slice
	for i := range h.ports {
		s.Ports = append(s.Ports, model.Port{Name: fmt.Sprint("p", i), Port: uint16(1 + i), Protocol: model.TCP})
	}
	for from := 0; from < h.endpoints; from += 100 {
		slice := &model.Slice{
			Name: model.Name{Namespace: namespace, Name: fmt.Sprint(name, "-", from)}, Service: name, Family: model.IPv4, Weight: 1,
		}
		for i := range h.ports {
			slice.Ports = append(slice.Ports, model.SlicePort{Name: fmt.Sprint("p", i), Port: uint16(1 + i), Protocol: model.TCP})
		}
		for i := from; i < min(from+100, h.endpoints); i++ {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Conditions: model.Ready, Node: unique.Make("node0"),
			})
		}
		list = append(list, slice)
	}
	return s, list
}

// newQuotaNode is a node with quotas and nothing on it.
func newQuotaNode(tb testing.TB, service, namespace lb.Quota) (*model.Store, *Reconciler, func() *Tables) {
	store := model.NewStore("node0")
	tables := NewMemory(maps.Sizes{Svcs: 4096, Services: 1024, Slots: 65536, Backends: 4096})
	r, err := New(Config{
		Store: store, Tables: tables, Barrier: func() error { return nil }, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Facts:          lb.Facts{ExternalIPs: lb.ExternalIPsAll, AcceptDirect: true, Quota: service},
		NamespaceQuota: namespace,
		Grow: func(sizes maps.Sizes) (*Tables, error) {
			sizes, err := sizes.Round()
			if err != nil {
				return nil, err
			}
			tables = GrowMemory(tables, sizes)
			return tables, nil
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(nil)
	if err := r.Drain(); err != nil {
		tb.Fatal(err)
	}
	return store, r, func() *Tables { return tables }
}

func set(store *model.Store, service *model.Service, list []*model.Slice) {
	store.SetService(service)
	for _, slice := range list {
		store.SetSlice(slice)
	}
}

// What one Service takes is bounded whatever its shape, and a problem says what is left out.
func TestHugeServiceStaysWithinItsQuota(t *testing.T) {
	quota, namespace := defaultQuotas()
	for name, tt := range map[string]struct {
		huge
		reason string
	}{
		"Maglev, 200 ports, 200 endpoints": {huge{200, 200, "maglev", true, 0}, "SmallerTable"},
		"50 ports, 1000 local endpoints":   {huge{50, 1000, "", true, 0}, "QuotaExceeded"},
		"4096 ports, 100 endpoints":        {huge{4096, 100, "", true, 0}, "QuotaExceeded"},
		"100 ports, 512 addresses":         {huge{100, 10, "", false, 512}, "QuotaExceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			store, r, tables := newQuotaNode(t, quota, namespace)
			service, list := tt.service("evil", "huge", 1)
			set(store, service, list)
			start := time.Now()
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			stats := r.Stats()
			hosted := r.frontends.hosted
			t.Logf("%v: %d frontends, %d hosted, %d backends, %d slots, sizes %+v", took, stats.Frontends, hosted, stats.Backends, stats.Slots, tables().Sizes())
			uses := lb.Quota{Frontends: stats.Frontends, Hosted: hosted, Backends: stats.Backends, Slots: stats.Slots}
			if over := uses.Exceeds(quota); over != "" {
				t.Errorf("%+v: the quota is %s", uses, over)
			}
			problems := r.Problems()[model.Key{Kind: model.KindService, Name: service.Name}]
			if len(problems) == 0 || !strings.Contains(fmt.Sprint(problems), tt.reason) {
				t.Errorf("problems %v, want %s", problems, tt.reason)
			}
		})
	}
}

// Four times the ports are to take about four times as long, not sixteen. What counts is the time of
// the processor, since other programs may make the machine slow, and of several runs the fastest.
func TestWorkGrowsWithTheSize(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for name, at := range map[string]func(n int) huge{
		"ports":     func(n int) huge { return huge{32 * n, 2, "", true, 0} },
		"endpoints": func(n int) huge { return huge{4, 64 * n, "", true, 0} },
		"addresses": func(n int) huge { return huge{8, 2, "", false, 8 * n} },
		"both":      func(n int) huge { return huge{n, 200, "", true, 0} },
	} {
		small, large := fastest(t, at(16)), fastest(t, at(64))
		t.Logf("%s: %v, four times as much in %v", name, small, large)
		if large > 8*small {
			t.Errorf("%s: four times as much takes %v instead of %v, %.1f times as long", name, large, small, float64(large)/float64(small))
		}
	}
}

// fastest returns how long this thread computes for one Service from its coming to its going.
func fastest(t *testing.T, h huge) (best time.Duration) {
	for range 5 {
		store, r, _ := newQuotaNode(t, lb.Quota{}, lb.Quota{})
		service, list := h.service("evil", "huge", 1)
		runtime.GC()
		start := threadTime(t)
		set(store, service, list)
		for range 3 { // the second and third time little is written
			store.MarkAll()
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
		}
		store.DeleteService(service.Name)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if took := threadTime(t) - start; best == 0 || took < best {
			best = took
		}
	}
	return best
}
