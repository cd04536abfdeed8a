package podnet

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// second is a pod's interface in another network of ours, in addition to its eth0.
type second struct {
	n    *node
	list *libcni.NetworkConfigList
	conf *libcni.RuntimeConf
	addr map[bool]netip.Addr // by whether it is IPv4
}

// addSecond attaches a pod to another network too.
func (n *node) addSecond(p *pod) *second {
	n.t.Helper()
	s := &second{n: n, conf: p.conf(), addr: map[bool]netip.Addr{}}
	s.conf.IfName = "net1"
	var err error
	s.list, err = libcni.ConfListFromBytes([]byte(strings.Replace(string(n.list.Bytes), `"name": "pods"`, `"name": "more"`, 1)))
	n.must(err)
	n.must(n.ns.Do(func() error {
		got, err := n.cni.AddNetworkList(context.Background(), s.list, s.conf)
		if err != nil {
			return err
		}
		result, err := current.NewResultFromResult(got)
		if err != nil {
			return err
		}
		for _, ip := range result.IPs {
			addr, _ := netip.AddrFromSlice(ip.Address.IP)
			s.addr[addr.Unmap().Is4()] = addr.Unmap()
		}
		return nil
	}))
	return s
}

func (s *second) check() error {
	return s.n.ns.Do(func() error { return s.n.cni.CheckNetworkList(context.Background(), s.list, s.conf) })
}

func (s *second) del() error {
	return s.n.ns.Do(func() error { return s.n.cni.DelNetworkList(context.Background(), s.list, s.conf) })
}

// TestTwoInterfaces checks that a pod with a second interface keeps using its first one, answers on
// each from that interface's address, and has both as ADD made them, also when the second is
// removed and added again.
func TestTwoInterfaces(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		w := newOneNode(t, bypass)
		rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
		rig.Route(t, w.outside, "fd00:1::/64", "2001:db8:1::1")
		a, b := w.pods[0], w.pods[1]
		for _, when := range []string{"at first", "again"} {
			w.addSecond(a)
			s := w.addSecond(a) // runtimes repeat calls whose outcome they do not know
			requireWays(t, a)
			for what, check := range map[string]func() error{"the first": func() error { return w.check(a) }, "the second": s.check} {
				if err := check(); err != nil {
					t.Errorf("past the stack %t, %s, %s: %v", bypass, when, what, err)
				}
			}
			for is4, to := range outsiders {
				if seen := talk(t, a.Netns, "tcp", b.addr[is4]); seen != a.addr[is4].String() {
					t.Errorf("past the stack %t, %s: its connections come from %s, want %s", bypass, when, seen, a.addr[is4])
				}
				for _, addr := range []netip.Addr{a.addr[is4], s.addr[is4]} {
					for from, want := range map[*rig.Netns]netip.Addr{b.Netns: b.addr[is4], w.outside: to} {
						if seen := talk(t, from, "tcp", addr); seen != want.String() {
							t.Errorf("past the stack %t, %s: %s is asked by %s, want %s", bypass, when, addr, seen, want)
						}
						talk(t, from, "icmp", addr)
					}
				}
			}
			w.must(s.del())
		}
	}
}

// requireWays fails the test unless each family has exactly one rule for the second interface,
// however often it was added, and sockets bound to that interface have a route out by it before
// they have an address.
func requireWays(t *testing.T, p *pod) {
	t.Helper()
	if err := p.Do(func() error {
		for is4, to := range outsiders {
			rules, err := netlink.RuleList(map[bool]int{true: netlink.FAMILY_V4, false: netlink.FAMILY_V6}[is4])
			if err != nil {
				return err
			}
			rules = slices.DeleteFunc(rules, func(r netlink.Rule) bool { return r.Src == nil })
			if len(rules) != 1 {
				t.Errorf("rules for addresses: %v, want one", rules)
			}
			ways, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Oif: "net1"})
			if err != nil || len(ways) != 1 || ways[0].Gw == nil {
				t.Errorf("the way to %s by net1: %v, %v", to, ways, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// limitsAllInterfaces checks that what a pod sends by two interfaces and in both families at the
// same time is kept to its one rate.
func (w *oneNode) limitsAllInterfaces(t *testing.T) {
	rate, a := float64(w.Rates["a"].Out), w.pods[0]
	s := w.addSecond(a)
	defer func() { w.must(s.del()) }()
	want4, all := leaves(rate/2, true)
	want6, _ := leaves(rate/2, false)
	before, passed := sentBy(t, a), w.pace(false)
	sink := drainAt(t, w.outside, 9, 2*all)
	to := netip.AddrPortFrom(outsiders[true], 9).String() + "," + netip.AddrPortFrom(outsiders[false], 9).String()
	rig.Child(t, nil, a.Netns, "pour", to, "4", strconv.Itoa(2*all), "0", a.addr[true].String(), s.addr[false].String())
	requireRate(t, "by two interfaces", drained(t, sink), want4+want6, 0.02)
	w.requireWaiting(t, false, false, passed)
	for name, bytes := range sentBy(t, a) {
		if bytes -= before[name]; bytes < uint64(all*datagram) || bytes > uint64(all*datagram*5/4) {
			t.Errorf("%s has sent %d bytes, want %d and their headers", name, bytes, all*datagram)
		}
	}
}

// sentBy returns how many bytes each of a pod's interfaces has sent.
func sentBy(t *testing.T, p *pod) map[string]uint64 {
	t.Helper()
	sent := map[string]uint64{}
	if err := p.Do(func() error {
		for _, name := range []string{"eth0", "net1"} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			sent[name] = link.Attrs().Statistics.TxBytes
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return sent
}
