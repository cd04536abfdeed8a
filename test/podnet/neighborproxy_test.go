package podnet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// bridge gives a node the bridge of another plugin, with addresses from the node's pod CIDRs.
func bridge(n *node) {
	n.must(n.ns.Do(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}) }))
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName("cni0")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}))
	rig.Address(n.t, n.ns, "cni0", "10.1.0.1/29", "fd00:1::1/125")
}

// bridgePod adds a pod of that plugin, with a device on its bridge and no address yet.
func bridgePod(n *node, name string) *rig.Netns {
	n.t.Helper()
	ns := rig.NewNetns(n.t, name)
	rig.Veth(n.t, n.ns, name+"0", ns, "eth0")
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName(name + "0")
		if err != nil {
			return err
		}
		master, err := netlink.LinkByName("cni0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(link, master)
	}))
	return ns
}

// TestBesideAnotherPlugin checks that pods of another plugin on the node keep their addresses,
// which no other pod gets, whether a route leads to them or they are behind the plugin's bridge,
// and that they and new pods reach each other by IPv4, although those on the bridge expect the new
// pods to be there too.
func TestBesideAnotherPlugin(t *testing.T) {
	n := newNodeOf(t, func(n *node) { bridge(n); rig.Address(t, n.ns, "lo", "192.0.2.1/32", "2001:db8::1/128") }, "10.1.0.0/29", "fd00:1::/125")
	old, routed := bridgePod(n, "old"), rig.NewNetns(t, "routed")
	bridgePod(n, "idle") // or the kernel would forget the bridge's neighbors when the other pod goes
	rig.Address(t, old, "eth0", "10.1.0.2/29", "fd00:1::2/125")
	rig.Route(t, old, "0.0.0.0/0", "10.1.0.1")
	rig.Route(t, old, "::/0", "fd00:1::1")
	rig.Veth(t, n.ns, "routed0", routed, "eth0")
	n.must(n.ns.Do(func() error { // nothing answers there: only the route says whose they are
		link, err := netlink.LinkByName("routed0")
		if err != nil {
			return err
		}
		for _, addr := range []string{"10.1.0.4", "fd00:1::4"} {
			to := netip.MustParseAddr(addr)
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())}}); err != nil {
				return err
			}
		}
		return nil
	}))
	a, b := n.pod("a"), n.pod("b")
	n.mustAdd(a)
	n.mustAdd(b)
	for _, tt := range []struct {
		p      *pod
		v4, v6 string
	}{{a, "10.1.0.3", "fd00:1::3"}, {b, "10.1.0.5", "fd00:1::5"}} {
		if got := [2]string{tt.p.addr[true].String(), tt.p.addr[false].String()}; got != [2]string{tt.v4, tt.v6} {
			t.Errorf("pod %s has %v, not %s and %s", tt.p.id, got, tt.v4, tt.v6)
		}
	}
	for _, ns := range []*rig.Netns{old, a.Netns} {
		if line, err := rig.NewChild(t, nil, ns, "echo", ":7").ReadLine(); err != nil || line != "ready" {
			t.Fatalf("the echo said %q, %v", line, err)
		}
	}
	talk := func(when string, from *rig.Netns, to, seen string) {
		t.Helper()
		if got, err := rig.RunChild(nil, from, "dial", "tcp", net.JoinHostPort(to, "7")); err != nil || got != seen {
			t.Errorf("%s: %s to %s is seen as %q, %v", when, from, to, got, err)
		}
	}
	both := func(when string) {
		t.Helper()
		talk(when, a.Netns, "10.1.0.2", a.addr[true].String())
		talk(when, old, a.addr[true].String(), "10.1.0.2")
	}
	both("at first")
	n.must(n.ns.Do(func() error { // as a plugin that recreates its bridge does
		list, err := netlink.NeighProxyList(0, netlink.FAMILY_V4)
		for i := range list {
			if err == nil {
				err = netlink.NeighDel(&list[i])
			}
		}
		return err
	}))
	n.restart()
	both("after a restart")
	n.must(n.del(a))
	if left := proxied(n); len(left) != 1 || !left[0].Equal(net.IP(b.addr[true].AsSlice())) {
		t.Errorf("after the pod went, the node answers for %v", left)
	}
	// Addresses that the former pods no longer have are free again: of six, the bridge has one, one
	// is routed, and one rests.
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName("old0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
	c, d := n.pod("c"), n.pod("d")
	n.mustAdd(c)
	n.mustAdd(d)
	if _, err := n.add(n.pod("e")); err == nil {
		t.Error("a pod gets an address where none is left")
	}
	if got := [2]string{c.addr[true].String(), d.addr[true].String()}; got != [2]string{"10.1.0.2", "10.1.0.6"} {
		t.Errorf("the pods after that have %v", got)
	}
}

// proxied returns the addresses for which the node answers on the bridge.
func proxied(n *node) (found []net.IP) {
	n.t.Helper()
	n.must(n.ns.Do(func() error {
		list, err := netlink.NeighProxyList(0, netlink.FAMILY_V4)
		for i := range list {
			found = append(found, list[i].IP)
		}
		return err
	}))
	return found
}
