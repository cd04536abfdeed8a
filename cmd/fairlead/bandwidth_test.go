package main

import (
	"cmp"
	"os"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/test/rig"
)

// What is told of rates is whose they are: each pod's once, however many interfaces it has, and what namespaces and the node share.
func TestRateSamples(t *testing.T) {
	rig.Root(t)
	a := &agent{cfg: &config.Config{BPFFS: rig.BPFFS(t)}}
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := os.MkdirAll(mapsDir(a.cfg), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Pin(mapsDir(a.cfg)); err != nil {
		t.Fatal(err)
	}
	share := maps.Share{Namespace: "shop", OfNamespace: 5000, OfNode: 9000}
	if _, err := m.SetRates([]maps.Pod{
		{Index: 7, Rates: maps.Rates{Out: 1000, In: 2000, Share: share}}, {Index: 8, Rates: maps.Rates{Out: 1000, Share: share}},
		{Index: 9, Rates: maps.Rates{Share: maps.Share{OfNode: 9000}}}, {Index: 10, Rates: maps.Rates{Out: 77}},
	}); err != nil {
		t.Fatal(err)
	}
	web := cni.Pod{Namespace: "shop", Name: "web"}
	got := a.rateSamples(&podnet.Stats{Rated: map[uint32]cni.Pod{7: web, 8: web, 9: {Namespace: "other", Name: "db"}}})
	slices.SortFunc(got, func(x, y metrics.Rate) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Direction, y.Direction))
	})
	want := []metrics.Rate{
		{RateOf: metrics.RateOf{Direction: "egress"}, Limit: 9000},
		{RateOf: metrics.RateOf{Namespace: "shop", Direction: "egress"}, Limit: 5000},
		{RateOf: metrics.RateOf{Namespace: "shop", Pod: "web", Direction: "egress"}, Limit: 2000},
		{RateOf: metrics.RateOf{Namespace: "shop", Pod: "web", Direction: "ingress"}, Limit: 2000},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := a.rateSamples(&podnet.Stats{}); got != nil {
		t.Errorf("without a pod that has one: %v", got)
	}
}
