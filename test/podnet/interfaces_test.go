package podnet

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.io/fairlead/test/rig"
)

// second is a pod's interface in another network of ours, beside its eth0.
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

// A pod that has another interface too goes on by its first one, answers by each under that one's address, and has both as they were made, also when
// the second is made again.
func TestTwoInterfaces(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		w := newTown(t, bypass)
		rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
		rig.Route(t, w.outside, "fd00:1::/64", "2001:db8:1::1")
		a, b := w.pods[0], w.pods[1]
		for _, when := range []string{"at first", "again"} {
			s := w.addSecond(a)
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
