package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

func node(name string, addr string, cidrs ...string) *model.Node {
	n := &model.Node{Name: name}
	for text := range strings.FieldsSeq(addr) {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(text))
	}
	for _, cidr := range cidrs {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(cidr))
	}
	return n
}

// newPlanner returns the planner of a node with pods in 10.1.0.0/24 and fd00:1::/64, that is on
// 192.0.2.0/24 and 2001:db8::/64 by device 3.
func newPlanner(mode string, has ...route) *planner {
	link := func(cidr string, device int) (netip.Prefix, network) {
		prefix := netip.MustParsePrefix(cidr)
		return prefix, network{prefix, device}
	}
	p := &planner{
		mode: mode, device: 9, self: node("self", "192.0.2.1 2001:db8::1"),
		own: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		has: func(r route) bool { return slices.Contains(has, r) },
	}
	p.networks = map[netip.Prefix]network{}
	for cidr, device := range map[string]int{"192.0.2.0/24": 3, "2001:db8::/64": 3, "192.0.2.128/25": 0, "172.17.0.0/16": 4, "0.0.0.0/0": 0} {
		prefix, n := link(cidr, device)
		p.networks[prefix] = n
	}
	p.local = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8::1")}
	return p
}

// routesText returns the plan's routes as text, without the node's own.
func routesText(m *plan) []string {
	list := []string{}
	for to, r := range m.routes {
		switch {
		case r.device == 0:
		case r.tunnel.IsValid():
			list = append(list, fmt.Sprintf("%s tunnel %s", to, r.tunnel))
		default:
			list = append(list, fmt.Sprintf("%s via %s dev %d", to, r.via, r.device))
		}
	}
	slices.Sort(list)
	return list
}

// Claims that a node must not make are refused, and all others get routes.
func TestPlan(t *testing.T) {
	victim := node("m", "192.0.2.2 2001:db8::2", "10.2.0.0/24", "fd00:2::/64")
	native := []string{"10.2.0.0/24 via 192.0.2.2 dev 3", "fd00:2::/64 via 2001:db8::2 dev 3"}
	tunnel := []string{"10.2.0.0/24 tunnel 192.0.2.2", "fd00:2::/64 tunnel 192.0.2.2"}
	for _, tt := range []struct {
		name    string
		claims  *model.Node
		refused string
		native  []string // in addition to the victim's
		tunnel  []string
		left    string
	}{
		{name: "fair", claims: node("a", "192.0.2.3", "10.3.0.0/24"), native: []string{"10.3.0.0/24 via 192.0.2.3 dev 3"}, tunnel: []string{"10.3.0.0/24 tunnel 192.0.2.3"}},
		{name: "everything", claims: node("a", "192.0.2.3", "0.0.0.0/0"), refused: "no node has so many pods"},
		{name: "half of everything", claims: node("a", "192.0.2.3", "128.0.0.0/1"), refused: "no node has so many pods"},
		{name: "everything of IPv6", claims: node("a", "192.0.2.3", "::/0"), refused: "no node has so many pods"},
		{name: "this node's pods", claims: node("a", "192.0.2.3", "10.1.0.0/24"), refused: "which is this node's"},
		{name: "some of this node's pods", claims: node("a", "192.0.2.3", "10.1.0.128/25"), refused: "which is this node's"},
		{name: "more than this node's pods", claims: node("a", "192.0.2.3", "fd00:1::/48"), refused: "which is this node's"},
		{name: "the nodes' network", claims: node("a", "192.0.2.3", "192.0.2.0/24"), refused: "which this node is in"},
		{name: "a node's address", claims: node("a", "192.0.2.3", "192.0.2.2/32"), refused: "which this node is in"},
		{name: "containers of this node", claims: node("a", "192.0.2.3", "172.17.3.0/24"), refused: "which this node is in"},
		{name: "an address of this node", claims: node("a", "192.0.2.3", "203.0.113.0/24"), refused: "203.0.113.5 is an address of this node"},
		{name: "a far node's address", claims: node("a", "192.0.2.3 203.0.112.9", "203.0.112.0/24"), refused: "203.0.112.9 is an address of a node"},
		{name: "loopback", claims: node("a", "192.0.2.3", "127.0.0.0/8"), refused: "it is for other uses"},
		{name: "multicast", claims: node("a", "192.0.2.3", "ff02::/64"), refused: "it is for other uses"},
		{name: "link-local", claims: node("a", "192.0.2.3", "169.254.0.0/16"), refused: "it is for other uses"},
		{name: "another's pods, later by name", claims: node("z", "192.0.2.3", "10.2.0.0/24"), refused: "it overlaps with 10.2.0.0/24 of node m"},
		{name: "some of another's, later by name", claims: node("z", "192.0.2.3", "10.2.0.64/26"), refused: "it overlaps with 10.2.0.0/24 of node m"},
		{name: "twice", claims: node("a", "192.0.2.3", "10.3.0.0/24", "10.3.0.0/24"), native: []string{"10.3.0.0/24 via 192.0.2.3 dev 3"}, tunnel: []string{"10.3.0.0/24 tunnel 192.0.2.3"}},
		{name: "behind a router", claims: node("a", "192.0.2.200", "10.3.0.0/24"), left: "the node has no address on a link of this one", tunnel: []string{"10.3.0.0/24 tunnel 192.0.2.200"}},
		{name: "IPv6 by IPv4", claims: node("a", "192.0.2.3", "fd00:3::/64"), left: "the node has no address on a link of this one", tunnel: []string{"fd00:3::/64 tunnel 192.0.2.3"}},
		{name: "IPv4 by IPv6", claims: node("a", "2001:db8::3", "10.3.0.0/24"), native: []string{"10.3.0.0/24 via 2001:db8::3 dev 3"}, tunnel: []string{"10.3.0.0/24 tunnel 2001:db8::3"}},
		{name: "to be this node", claims: node("a", "192.0.2.1", "10.3.0.0/24"), left: "the node has no address"},
		{name: "to be a pod of this node", claims: node("a", "10.1.0.7", "10.3.0.0/24"), left: "the node has no address"},
		{name: "to be loopback", claims: node("a", "127.0.0.1 ::1 169.254.169.254", "10.3.0.0/24"), left: "the node has no address"},
		{name: "no address", claims: node("a", "", "10.3.0.0/24"), left: "the node has no address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, mode := range []string{Native, VXLAN} {
				others := []*model.Node{tt.claims, victim}
				slices.SortFunc(others, func(a, b *model.Node) int { return strings.Compare(a.Name, b.Name) })
				made := newPlanner(mode).make(others)
				want := slices.Concat(native, tt.native)
				if mode == VXLAN {
					want = slices.Concat(tunnel, tt.tunnel)
				}
				slices.Sort(want)
				if got := routesText(made); !slices.Equal(got, want) {
					t.Errorf("%s: routes %q, want %q", mode, got, want)
				}
				if got := strings.Join(made.refused, "\n"); !strings.Contains(got, tt.refused) || (got == "") != (tt.refused == "") {
					t.Errorf("%s: refused %q, want %q", mode, got, tt.refused)
				}
				left := tt.left
				if mode == VXLAN && len(tt.tunnel) > 0 {
					left = ""
				}
				if got := strings.Join(made.left, "\n"); !strings.Contains(got, left) || (got == "") != (left == "") {
					t.Errorf("%s: left %q, want %q", mode, got, left)
				}
			}
		})
	}
}

// A node that has a network keeps it, whatever the name and addresses of another claimant.
func TestPlanIncumbent(t *testing.T) {
	victim := node("m", "192.0.2.2", "10.2.0.0/24")
	for _, mode := range []string{Native, VXLAN} {
		before := newPlanner(mode).make([]*model.Node{victim})
		for _, thief := range []*model.Node{
			node("a", "192.0.2.3", "10.2.0.0/24"), node("a", "192.0.2.3", "10.2.0.0/25"), node("a", "192.0.2.3", "10.2.0.0/16"),
			node("a", "192.0.2.3 10.2.0.77", "10.3.0.0/24"),
		} {
			made := newPlanner(mode, before.routes[victim.PodCIDRs[0]]).make([]*model.Node{thief, victim})
			if made.routes[victim.PodCIDRs[0]] != before.routes[victim.PodCIDRs[0]] {
				t.Errorf("%s: %v took over the network: routes %q, refused %q", mode, thief, routesText(made),
					made.refused)
			}
		}
		// Without an established route, the first node by name wins.
		made := newPlanner(mode).make([]*model.Node{node("a", "192.0.2.3", "10.2.0.0/24"), victim})
		if r := made.routes[victim.PodCIDRs[0]]; r.via == before.routes[victim.PodCIDRs[0]].via || len(made.refused) != 1 {
			t.Errorf("%s: without an established route: routes %q, refused %q", mode, routesText(made), made.refused)
		}
	}
}

// No two nodes have the same MAC address, and all addresses are unicast and locally administered.
func TestMACs(t *testing.T) {
	seen := map[[6]byte]string{}
	for i := range 20000 {
		name := fmt.Sprintf("node-%d", i)
		mac := macOf(name)
		if other, taken := seen[mac]; taken || mac[0]&3 != 2 {
			t.Errorf("macOf(%q) = %x, want a local unicast address other than that of %q", name, mac, other)
		}
		seen[mac] = name
		if via := linkLocal(mac); !via.IsLinkLocalUnicast() {
			t.Errorf("linkLocal for %s = %s, want a link-local address", name, via)
		}
	}
}
