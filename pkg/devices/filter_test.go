package devices

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseFilter(t *testing.T) {
	for _, text := range []string{"auto", "none", "eth0", "eth0, eth1", "eth*", "en*,bond0", "*", "eth0.100"} {
		if _, err := ParseFilter(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", ",", "eth0,", "e*h", "a/b", "eth 0", "interface-name-x", "**"} {
		if _, err := ParseFilter(text); err == nil {
			t.Errorf("ParseFilter accepts %q", text)
		}
	}
}

// dev builds a candidate from words: a kind, addr=, default4, default6, master=, lower=, lo, raw.
func dev(index int, name string, words ...string) candidate {
	c := candidate{Device: Device{Index: index, Name: name, Kind: "device"}, ethernet: true}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "addr":
			c.addrs = append(c.addrs, netip.MustParseAddr(value))
		case "default4":
			c.Default4 = true
		case "default6":
			c.Default6 = true
		case "master":
			c.master = int(value[0] - '0')
		case "lower":
			c.lower = int(value[0] - '0')
		case "lo":
			c.loopback = true
		case "raw":
			c.ethernet = false
		default:
			c.Kind = word
		}
	}
	return c
}

func TestChoose(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for _, test := range []struct {
		name, filter string
		candidates   []candidate
		want         string // name: why
	}{
		{"the default route of each family", "auto", []candidate{dev(2, "eth0", "default4"), dev(3, "eth1", "default6"), dev(4, "eth2")},
			"eth0: it has the default route, eth1: it has the default route"},
		{"an address", "auto", []candidate{dev(2, "eth0"), dev(3, "eth1", "addr=10.0.0.1")}, "eth1: it has an address"},
		{"loopback", "auto", []candidate{dev(1, "lo", "lo", "addr=192.0.2.1", "default4")}, ""},
		{"loopback by name", "lo", []candidate{dev(1, "lo", "lo")}, ""},
		{"packets without Ethernet", "wg0,tun0", []candidate{dev(2, "wg0", "wireguard", "raw"), dev(3, "tun0", "tuntap", "raw", "default4")}, ""},
		{"the master of a bond", "auto",
			[]candidate{dev(2, "eth0", "master=4"), dev(3, "eth1", "master=4", "default4"), dev(4, "bond0", "bond", "addr=10.0.0.1")},
			"bond0: it has an address"},
		{"a port of a bridge that is the uplink", "auto",
			[]candidate{dev(2, "eth0", "master=3", "addr=10.0.0.9"), dev(3, "br0", "bridge", "addr=10.0.0.1", "default4")},
			"br0: it has the default route"},
		{"a VLAN and not its parent", "auto", []candidate{dev(2, "eth0"), dev(3, "eth0.5", "vlan", "lower=2", "addr=10.0.0.1")},
			"eth0.5: it has an address"},
		{"in a VRF", "auto", []candidate{dev(2, "eth0", "master=3", "addr=10.0.0.1"), dev(3, "red", "vrf", "addr=10.0.0.2")},
			"eth0: it has an address"},
		{"bridges and veths of containers", "auto",
			[]candidate{dev(2, "docker0", "bridge", "addr=172.17.0.1"), dev(3, "veth1", "veth", "addr=10.1.0.1"), dev(4, "veth2", "veth", "master=2")}, ""},
		{"a veth that is how the node is reached", "auto",
			[]candidate{dev(2, "eth0", "veth", "default4"), dev(3, "eth1", "veth", "addr=192.0.2.1"), dev(4, "eth2", "veth", "addr=10.9.0.1")},
			"eth0: it has the default route, eth1: it has the node's address"},
		{"dummies and tunnels", "auto",
			[]candidate{dev(2, "kube-ipvs0", "dummy", "addr=10.96.0.1"), dev(3, "vxlan", "vxlan", "addr=10.2.0.0", "default4"), dev(4, "gre", "gretap", "addr=192.0.2.1")}, ""},
		{"a tunnel by name", "vxlan", []candidate{dev(2, "eth0", "default4"), dev(3, "vxlan", "vxlan")}, "vxlan: it is named"},
		{"names", "eth1,bond*", []candidate{dev(2, "eth0", "default4"), dev(3, "eth1"), dev(4, "eth10"), dev(5, "bond0"), dev(6, "bond")},
			"eth1: it is named, bond0: its name fits, bond: its name fits"},
		{"slaves that a name with a star fits", "*", []candidate{dev(2, "eth0", "master=3"), dev(3, "bond0", "bond")}, "bond0: its name fits"},
		{"a slave by name", "eth0", []candidate{dev(2, "eth0", "master=3"), dev(3, "bond0", "bond")}, "eth0: it is named"},
		{"none", "none", []candidate{dev(2, "eth0", "default4")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			filter, err := ParseFilter(test.filter)
			if err != nil {
				t.Fatal(err)
			}
			var have []string
			if !filter.None() {
				for _, d := range filter.choose(test.candidates, own) {
					have = append(have, d.Name+": "+d.Why)
				}
			}
			if diff := cmp.Diff(test.want, strings.Join(have, ", ")); diff != "" {
				t.Errorf("-want +have:\n%s", diff)
			}
		})
	}
}

func TestMissing(t *testing.T) {
	filter, err := ParseFilter("eth0,eth1,bond*")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"eth1"}, filter.Missing([]Device{{Name: "eth0"}})); diff != "" {
		t.Errorf("-want +have:\n%s", diff)
	}
}
