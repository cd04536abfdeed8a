package agent

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/enforce"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

// A scrape shows what the agent enforces, how many rows that takes, and what the programs count.
func TestPolicyMetrics(t *testing.T) {
	rig.Root(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := &config.Config{Source: t.TempDir(), NodeName: "self", Policies: "enforce", BPFFS: rig.BPFFS(t), CgroupRoot: rig.NewCgroup(t).Path()}
	log, store := slog.New(slog.DiscardHandler), model.NewStore("self")
	path, err := datapath.Open(datapath.Config{BPFFS: cfg.BPFFS, CgroupRoot: cfg.CgroupRoot, Log: log})
	check(err)
	t.Cleanup(func() { check(path.Close()) })
	check(path.Create(maps.Sizes{}))
	src, _, err := cluster.NewSource(cfg, store, nil, "", log)
	check(err)
	controller := policies.New(&policies.Config{Store: store, Node: "self", Mode: "enforce", Quota: policy.DefaultQuota(), Log: log})
	a := &agent{
		cfg: cfg, path: path, store: store, source: src, nodes: nodes.New(path, store, nil, log), monitors: &monitors{hub: monitor.NewHub(monitor.Config{})},
		enforcer: &enforcer{Controller: controller, maps: path.Maps},
	}
	check(a.prepareMetrics())
	a.readiness = &readiness{cfg: cfg, store: store, path: path, reconciler: a.reconciler.Load, answered: a.metrics.Answered}

	pod := model.Name{Namespace: "shop", Name: "web"}
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	store.ReplaceNodes([]*model.Node{{Name: "self"}})
	store.ReplaceNamespaces([]*model.Namespace{{Name: "shop"}})
	store.ReplacePods([]*model.Pod{{Name: pod}})
	store.ReplaceNetworkPolicies([]*model.NetworkPolicy{{
		Name: model.Name{Namespace: "shop", Name: "deny"}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "shop"}, Isolates: [2]bool{true, true},
	}})
	store.ReplaceClusterNetworkPolicies(nil)

	opened, err := path.OpenEnforceMaps()
	check(err)
	writer, err := enforce.New(opened, false, nil)
	check(err)
	t.Cleanup(func() { check(writer.Close()) })
	ctx, cancel := context.WithCancel(t.Context())
	applied, ended := make(chan struct{}, 1), make(chan error, 1)
	around := &policies.Around{
		Writer: writer,
		Devices: func() []policies.Device {
			return []policies.Device{{Pod: pod, Index: 7, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}
		},
		Applied: func(waited time.Duration) { a.metrics.Enforced(waited); applied <- struct{}{} },
		Decided: func() error { ended <- nil; return nil },
	}
	go func() { ended <- a.enforcer.Run(ctx, around) }()
	<-applied
	check(<-ended) // Decided
	cancel()
	check(<-ended) // Run

	for _, name := range a.enforcer.Names() {
		if name.Policy != "" && name.Direction == "egress" {
			check(path.Maps().PolicyDenials.Put(bpf.MapsPolicyDenial{Rule: name.Number, Direction: uint32(model.Egress)}, uint64(5)))
		}
	}
	check(path.Maps().PolicyFlows.Put(maps.Flow{}, maps.PolicyFlow{}))
	answer := httptest.NewRecorder()
	a.metrics.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	page := "\n" + answer.Body.String()
	for _, want := range []string{
		`fairlead_policy_objects{kind="networkpolicy"} 1`, `fairlead_policy_pods 1`, `fairlead_policy_in_force 1`,
		`fairlead_policy_update_duration_seconds_count 1`, `fairlead_policy_denials{direction="egress",policy="networkpolicy shop/deny"} 5`,
		`fairlead_policy_denied_packets_total{outcome="dropped"} 0`, `fairlead_map_entries{map="policy_pods"} 1`, `fairlead_map_entries{map="policy_regions"} 2`,
		`fairlead_map_entries{map="policy_flows"} 1`, `fairlead_map_entries{map="policy_denials"} 1`, `fairlead_map_max_entries{map="policy_peers"} 262144`,
	} {
		if !strings.Contains(page, "\n"+want+"\n") {
			t.Errorf("the page lacks %s", want)
		}
	}
}
