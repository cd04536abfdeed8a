package agent

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/test/rig"
)

// BenchmarkScrape measures what one scrape costs an agent, from the request to the text, and how
// little that depends on the number of services. In the last case, each of them has a problem.
func BenchmarkScrape(b *testing.B) {
	rig.Root(b)
	for _, tt := range []struct {
		services int
		problems bool
	}{{1, false}, {100_000, false}, {100_000, true}} {
		b.Run(fmt.Sprintf("services=%d,problems=%v", tt.services, tt.problems), func(b *testing.B) {
			handler := largeAgent(b, tt.services, tt.problems).metrics.Handler()
			for b.Loop() {
				answer := httptest.NewRecorder()
				if handler.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil)); answer.Code != 200 {
					b.Fatalf("%d: %s", answer.Code, answer.Body)
				}
			}
		})
	}
}

// largeAgent returns an agent whose maps hold that many services.
func largeAgent(b *testing.B, services int, problems bool) *agent {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	cfg := &config.Config{Source: b.TempDir(), NodeName: "node-a", BPFFS: rig.BPFFS(b), CgroupRoot: rig.NewCgroup(b).Path()}
	log := slog.New(slog.DiscardHandler)
	store := model.NewStore(cfg.NodeName)
	for i := range services {
		s := &model.Service{
			Name:       model.Name{Namespace: "many", Name: fmt.Sprint("s", i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)})},
			Ports:      []model.Port{{Port: 80, Protocol: model.TCP}},
		}
		if problems {
			s.Problems = []model.Problem{{Reason: "InvalidAddress", Message: "externalIP \"x\" is ignored"}}
		}
		store.SetService(s)
	}
	path, err := datapath.Open(datapath.Config{BPFFS: cfg.BPFFS, CgroupRoot: cfg.CgroupRoot, Log: log})
	check(err)
	b.Cleanup(func() { check(path.Close()) })
	check(path.Create(reconcile.Estimate(store)))
	check(path.Attach())
	src, _, err := cluster.NewSource(cfg, store, nil, "", log)
	if err != nil {
		b.Fatal(err)
	}
	a := &agent{cfg: cfg, path: path, store: store, source: src, nodes: nodes.New(path, store, nil, log), monitors: &monitors{hub: monitor.NewHub(monitor.Config{})}}
	check(a.prepareMetrics())
	a.readiness = &readiness{cfg: cfg, store: store, path: path, reconciler: a.reconciler.Load, answered: a.metrics.Answered}
	reconciler, err := reconcile.New(reconcile.Config{
		Store: store, Tables: tablesOf(path), Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll}, Log: log,
		Barrier: func() error { return nil },
		Grow: func(sizes maps.Sizes) (*reconcile.Tables, error) {
			err := path.Grow(sizes)
			return tablesOf(path), err
		},
	})
	check(err)
	a.reconciler.Store(reconciler)
	check(reconciler.Drain())
	if stats := reconciler.Stats(); stats.Services != services {
		b.Fatalf("%d services are in the maps, want %d", stats.Services, services)
	}
	return a
}
