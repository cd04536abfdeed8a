package podnet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// The addresses of a bridge at which another plugin has pods, by whether they are IPv4.
var bridges = map[bool]netip.Addr{true: netip.MustParseAddr("10.9.0.1"), false: netip.MustParseAddr("fd09::1")}

// atBridge makes a pod's device a port of the other plugin's bridge, and gives it addresses.
func atBridge(container string, pod *netlink.Handle, port netlink.Link, device netlink.Link) ([]netip.Addr, error) {
	bridge, err := netlink.LinkByName("br0")
	if err == nil {
		err = netlink.LinkSetMaster(port, bridge)
	}
	if err == nil {
		err = netlink.LinkSetUp(port)
	}
	if err == nil {
		err = pod.LinkSetUp(device)
	}
	var addrs []netip.Addr
	for _, gateway := range bridges {
		last, bits := gateway.AsSlice(), map[bool]int{true: 24, false: 64}[gateway.Is4()]
		last[len(last)-1] = container[0]
		addr, _ := netip.AddrFromSlice(last)
		var parsed *netlink.Addr
		if err == nil {
			parsed, err = netlink.ParseAddr(netip.PrefixFrom(addr, bits).String())
		}
		if err == nil {
			parsed.Flags = unix.IFA_F_NODAD
			err = pod.AddrAdd(device, parsed)
		}
		if err == nil {
			err = pod.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Gw: gateway.AsSlice()})
		}
		addrs = append(addrs, addr)
	}
	return addrs, err
}

// newChained returns a node whose pods have devices of another plugin, at a bridge. The first pod
// has the rates that its runtime asks for.
func newChained(t *testing.T, rate uint64) *oneNode {
	t.Helper()
	w := &oneNode{}
	w.node = newNodeOf(t, func(n *node) {
		rig.Address(t, n.ns, "lo", "192.0.2.1/32", "2001:db8::1/128")
		w.outside = rig.NewNetns(t, "outside")
		rig.Veth(t, n.ns, "eth0", w.outside, "eth0")
		rig.Address(t, n.ns, "eth0", "198.51.100.1/24", "2001:db8:1::1/64")
		rig.Address(t, w.outside, "eth0", "198.51.100.7/24", "2001:db8:1::7/64")
		rig.Bridge(t, n.ns, "br0")
		rig.Address(t, n.ns, "br0", "10.9.0.1/24", "fd09::1/64")
		rig.Route(t, w.outside, "10.9.0.0/24", "198.51.100.1")
		rig.Route(t, w.outside, "fd09::/64", "2001:db8:1::1")
		n.Forwarding = &forwarding{BPFFS: rig.BPFFS(t), Cgroup: rig.NewCgroup(t).Path()}
		n.Chained, n.Rates = true, map[string]maps.Rates{"a": {Out: rate, In: rate}}
	})
	n := w.node
	notes := fakes(t, n)
	n.configure("1.0.0", fmt.Sprintf(`{"type": %q, "notes": %q, "peer": "bridge"}`, fakeName, notes), entry)
	for _, id := range []string{"a", "b"} {
		p := n.pod(id)
		if id == "a" {
			p.caps = map[string]any{"bandwidth": map[string]any{"egressRate": rate * 8, "ingressRate": rate * 8}}
		}
		n.mustAdd(p)
		listenIn(t, p.Netns)
		w.pods = append(w.pods, p)
	}
	listenIn(t, w.outside)
	listenIn(t, n.ns)
	return w
}

// TestRatesAfterAnother checks that a pod with rates whose device belongs to another plugin still
// reaches other pods, the outside and the node, through the bridge and the node's stack, and is
// reached, all with unchanged source addresses; so too after a restart, and once it has no rates.
func TestRatesAfterAnother(t *testing.T) {
	w := newChained(t, 1e9)
	a, b := w.pods[0], w.pods[1]
	for _, step := range []string{"at first", "after a restart", "without rates"} {
		switch step {
		case "after a restart":
			w.restart()
		case "without rates":
			w.Rates = map[string]maps.Rates{}
			w.restart()
		}
		before, after := w.pace(false), w.pace(true)
		for _, is4 := range []bool{true, false} {
			for _, protocol := range []string{"tcp", "udp", "icmp"} {
				for _, way := range []struct {
					what     string
					from     *rig.Netns
					to, seen netip.Addr
				}{
					{"to another", a.Netns, b.addr[is4], a.addr[is4]}, {"from another", b.Netns, a.addr[is4], b.addr[is4]},
					{"to outside", a.Netns, outsiders[is4], a.addr[is4]}, {"from outside", w.outside, a.addr[is4], outsiders[is4]},
					{"to the node", a.Netns, bridges[is4], a.addr[is4]},
				} {
					want := way.seen.String()
					if protocol == "icmp" {
						want = way.to.String()
					}
					if seen := talk(t, way.from, protocol, way.to); seen != want {
						t.Errorf("%s: %s by %s, IPv4 %t: came from %s, want %s", step, way.what, protocol, is4, seen, want)
					}
				}
			}
		}
		sent, got := w.pace(false).Passed-before.Passed, w.pace(true).Passed-after.Passed
		if limited := step != "without rates"; (sent > 0) != limited || (got > 0) != limited {
			t.Errorf("%s: it has sent %d bytes of its rate, and got %d", step, sent, got)
		}
	}
}

// TestBandwidthAfterAnother checks that a pod whose device belongs to another plugin keeps to its
// rates, whichever way its packets take.
func TestBandwidthAfterAnother(t *testing.T) {
	rig.Root(t)
	needFq(t)
	const rate, within = 10e6 / 8, 0.02
	w := newChained(t, rate)
	a, b := w.pods[0], w.pods[1]
	if !w.sendsAtRate(t, a.Netns, w.outside, outsiders[true], rate, 16, within) || !w.sendsAtRate(t, a.Netns, b.Netns, b.addr[false], rate, 1, within) ||
		!w.sendsAtRate(t, a.Netns, w.ns, bridges[true], rate, 1, within) || !w.getsAt(t, w.outside, a.Netns, a.addr[false], rate, 1, within) ||
		!w.getsAt(t, b.Netns, a.Netns, a.addr[true], rate, 16, within) {
		t.Fatal("the machine is too busy to judge the rate")
	}
	w.requireFree(t, b, rate)
	w.streamsAt(t, outsiders[true], rate, 1, 0.02)
}
