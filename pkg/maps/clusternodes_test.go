package maps

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.io/fairlead/test/rig"
)

func TestClusterRows(t *testing.T) {
	rig.Root(t)
	m, err := Create(Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	one := ClusterNode{Name: 7 << 40, Number: 1, Self: true}
	two := ClusterNode{Name: 9, Number: 2}
	at := netip.MustParseAddr
	of := netip.MustParsePrefix
	all := Cluster{
		Known: true,
		Nodes: map[netip.Addr]ClusterNode{at("192.0.2.1"): one, at("2001:db8::1"): one, at("192.0.2.2"): two},
		Sources: map[netip.Prefix]ClusterNode{
			of("192.0.2.1/32"): one, of("2001:db8::1/128"): one, of("10.1.0.0/24"): one, of("fd00:1::/64"): one, of("192.0.2.2/32"): two, of("10.2.0.0/16"): two, of("10.2.1.0/24"): one,
		},
	}
	moved := Cluster{Known: true, Nodes: map[netip.Addr]ClusterNode{at("192.0.2.1"): two}, Sources: map[netip.Prefix]ClusterNode{of("10.1.0.0/24"): two}}
	unknown := all
	unknown.Known = false
	for _, want := range []Cluster{unknown, all, moved, all, {Known: true}, {}, all} {
		if _, err := m.SetCluster(want); err != nil {
			t.Fatal(err)
		}
		have, err := ClusterRows(m.ClusterNodes, m.NodeSources)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, have, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("rows (-want +have):\n%s", diff)
		}
		if changed, err := m.SetCluster(want); err != nil || changed != 0 {
			t.Errorf("the same once more changes %d rows, %v", changed, err)
		}
	}
}
