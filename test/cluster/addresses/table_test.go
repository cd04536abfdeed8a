package addresses

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

func routesOf(t *testing.T, rows map[string][]string) routes {
	t.Helper()
	found := routes{}
	for addr, hops := range rows {
		for _, hop := range hops {
			found[netip.MustParseAddr(addr)] = append(found[netip.MustParseAddr(addr)], netip.MustParseAddr(hop))
		}
	}
	return found
}

func TestTable(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	router, nodes := rig.NewNetns(t, "router"), rig.NewNetns(t, "nodes")
	rig.Veth(t, router, "eth0", nodes, "eth0")
	rig.Address(t, router, "eth0", "10.0.0.254/24", "fd00::fe/64")
	rig.Route(t, router, "10.8.0.1/32", "10.0.0.1") // not made by the controller
	var before []netlink.Route
	table := mustOpen(t, router)
	steps := []map[string][]string{
		{"10.9.0.1": {"10.0.0.1"}, "fd09::1": {"fd00::1"}},
		{"10.9.0.1": {"10.0.0.1", "10.0.0.2"}, "fd09::1": {"fd00::1", "fd00::2", "fd00::3"}, "10.9.0.2": {"10.0.0.2"}},
		{"10.9.0.1": {"10.0.0.3"}, "fd09::1": {"fd00::2", "fd00::3"}, "10.9.0.2": {"10.0.0.2"}},
		{"10.9.0.1": {"10.0.0.1", "10.0.0.3"}, "fd09::1": {"fd00::2"}},
		{},
	}
	for i, want := range steps {
		for range 2 { // the second call changes nothing
			if err := table.apply(routesOf(t, want)); err != nil {
				t.Fatal(err)
			}
		}
		// A new process finds what the old one made.
		found, err := mustOpen(t, router).routes()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(routesOf(t, want), found, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("step %d (-want +have):\n%s", i, diff)
		}
	}
	if err := router.Do(func() (err error) { before, err = netlink.RouteList(nil, netlink.FAMILY_V4); return err }); err != nil {
		t.Fatal(err)
	}
	foreign := 0
	for _, r := range before {
		if r.Dst != nil && r.Dst.IP.String() == "10.8.0.1" {
			foreign++
		}
	}
	if foreign != 1 {
		t.Errorf("a route that is not the controller's was removed: %v", before)
	}
}

// An unreachable hop makes its own route fail, and no other.
func TestTableWithBadHop(t *testing.T) {
	rig.Root(t)
	router, nodes := rig.NewNetns(t, "router"), rig.NewNetns(t, "nodes")
	rig.Veth(t, router, "eth0", nodes, "eth0")
	rig.Address(t, router, "eth0", "10.0.0.254/24")
	table := mustOpen(t, router)
	if err := table.apply(routesOf(t, map[string][]string{"10.9.0.1": {"192.0.2.1"}, "10.9.0.2": {"10.0.0.1"}})); err == nil {
		t.Error("apply made a route over an unreachable hop")
	}
	found, err := table.routes()
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || len(found[netip.MustParseAddr("10.9.0.2")]) != 1 {
		t.Errorf("routes: %v", found)
	}
}

func mustOpen(t *testing.T, n *rig.Netns) *table {
	t.Helper()
	table, err := openTable(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.close)
	return table
}
