package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlan(t *testing.T) {
	tests := []struct {
		family Family
		want   string
	}{
		{IPv4, `
router 10.200.0.1/24
control 10.200.0.2/24
node 10.200.0.13/24
outside 10.200.1.1/24 10.200.1.2/24
pods 10.201.0.0/16 10.201.3.0/24
services 10.202.0.0/16 10.202.0.1 10.202.0.10
balancers 10.200.2.0/24
caller 10.203.0.2/32
`},
		{IPv6, `
router fd00:10:200::1/64
control fd00:10:200::2/64
node fd00:10:200::13/64
outside fd00:10:200:1::1/64 fd00:10:200:1::2/64
pods fd00:10:201::/48 fd00:10:201:3::/64
services fd00:10:202::/112 fd00:10:202::1 fd00:10:202::a
balancers fd00:10:200:2::/64
caller fd00:10:203::2/128
`},
		{Dual, `
router 10.200.0.1/24 fd00:10:200::1/64
control 10.200.0.2/24 fd00:10:200::2/64
node 10.200.0.13/24 fd00:10:200::13/64
outside 10.200.1.1/24 fd00:10:200:1::1/64 10.200.1.2/24 fd00:10:200:1::2/64
pods 10.201.0.0/16 fd00:10:201::/48 10.201.3.0/24 fd00:10:201:3::/64
services 10.202.0.0/16 fd00:10:202::/112 10.202.0.1 fd00:10:202::1 10.202.0.10 fd00:10:202::a
balancers 10.200.2.0/24 fd00:10:200:2::/64
caller 10.203.0.2/32 fd00:10:203::2/128
`},
	}
	for _, tt := range tests {
		t.Run(string(tt.family), func(t *testing.T) {
			f := tt.family
			var have strings.Builder
			line := func(name string, lists ...any) {
				text := name
				for _, list := range lists {
					text += " " + strings.Trim(fmt.Sprint(list), "[]")
				}
				fmt.Fprintln(&have, text)
			}
			line("\nrouter", f.Router())
			line("control", f.Control())
			line("node", f.Node(3))
			line("outside", f.OutsideRouter(), f.Outside())
			line("pods", f.Pods(), f.NodePods(3))
			line("services", f.Services(), f.Kubernetes(), f.DNS())
			line("balancers", f.Balancers())
			line("caller", f.Caller())
			if diff := cmp.Diff(tt.want, have.String()); diff != "" {
				t.Errorf("(-want +have):\n%s", diff)
			}
		})
	}
}

// No two things share an address, and no ranges overlap, except that the nodes' pod ranges lie in
// the range of all pods.
func TestNothingOverlaps(t *testing.T) {
	for _, f := range []Family{IPv4, Dual, IPv6} {
		ranges := [][]netip.Prefix{f.Underlay(), {f.Outside()[0].Masked()}, f.Pods(), f.Services(), f.Balancers(), f.Caller()}
		for i, a := range ranges {
			for _, b := range ranges[i+1:] {
				for _, p := range a {
					for _, q := range b {
						if p.Overlaps(q) {
							t.Errorf("%s: %s and %s overlap", f, p, q)
						}
					}
				}
			}
		}
		seen := map[netip.Addr]string{}
		take := func(name string, prefixes []netip.Prefix) {
			for _, p := range prefixes {
				if other := seen[p.Addr()]; other != "" {
					t.Errorf("%s: %s belongs to both %s and %s", f, p.Addr(), other, name)
				}
				seen[p.Addr()] = name
			}
		}
		take("router", f.Router())
		take("control", f.Control())
		for i := 1; i <= MaxNodes; i++ {
			take(fmt.Sprint("node", i), f.Node(i))
			for k, p := range f.NodePods(i) {
				take(fmt.Sprint("pods of node", i), []netip.Prefix{p})
				if !f.Pods()[k].Overlaps(p) {
					t.Errorf("%s: %s is not in %s", f, p, f.Pods()[k])
				}
				if !f.Underlay()[k].Contains(f.Node(i)[k].Addr()) {
					t.Errorf("%s: node %d is not on the underlay", f, i)
				}
			}
		}
	}
}

func TestParseFamily(t *testing.T) {
	for _, f := range []Family{IPv4, Dual, IPv6} {
		if have, err := ParseFamily(string(f)); err != nil || have != f {
			t.Errorf("%s: %s, %v", f, have, err)
		}
	}
	for _, name := range []string{"", "IPv4", "ipv5"} {
		if have, err := ParseFamily(name); err == nil {
			t.Errorf("%q: %s", name, have)
		}
	}
}
