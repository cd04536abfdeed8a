package devices

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Filter says which devices may be chosen.
type Filter struct {
	none  bool
	names []string // a trailing * matches any text; empty means to detect them
}

// ParseFilter parses "auto", "none", or a list of names, each of which may end in * to match any
// text.
func ParseFilter(text string) (Filter, error) {
	switch text {
	case "auto":
		return Filter{}, nil
	case "none":
		return Filter{none: true}, nil
	}
	var f Filter
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		stem, _ := strings.CutSuffix(name, "*")
		switch {
		case name == "":
			return Filter{}, errors.New("a device name is empty: give auto, none, or names separated by commas")
		case len(stem) >= unix.IFNAMSIZ || strings.ContainsAny(stem, "*/ \t"):
			return Filter{}, fmt.Errorf("%q is not a device name: it may have at most %d bytes, and * only at its end",
				name, unix.IFNAMSIZ-1)
		}
		f.names = append(f.names, name)
	}
	return f, nil
}

// None reports whether no device may be chosen.
func (f Filter) None() bool { return f.none }

// Missing returns the names without a * that match none of the chosen devices.
func (f Filter) Missing(chosen []Device) []string {
	var missing []string
	for _, name := range f.names {
		there := func(d Device) bool { return d.Name == name }
		if !strings.HasSuffix(name, "*") && !slices.ContainsFunc(chosen, there) {
			missing = append(missing, name)
		}
	}
	return missing
}

// named reports whether the name matches an entry of the list, and whether it is an entry.
func (f Filter) named(name string) (listed, full bool) {
	for _, pattern := range f.names {
		stem, wild := strings.CutSuffix(pattern, "*")
		listed = listed || name == pattern || wild && strings.HasPrefix(name, stem)
		full = full || name == pattern
	}
	return listed, full
}

// standing says whether devices of a kind are chosen.
type standing int

const (
	uplink    standing = iota // leads outside if it has an address
	ambiguous                 // leads to containers, unless the node itself is reached through it
	never                     // only if named
)

// standingOf returns the standing of a kind. Clients don't arrive through tunnel devices: tunneled
// packets pass another device, where they would be handled a second time.
func standingOf(kind string) standing {
	switch kind {
	case "veth", "bridge", "openvswitch", "netkit", "tuntap", "tun":
		return ambiguous
	case "dummy", "ifb", "nlmon", "vrf", "vxlan", "geneve", "bareudp", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan",
		"ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm", "wireguard", "gtp", "vcan", "can":
		return never
	}
	return uplink
}

// choose returns the chosen devices, sorted by index.
func (f Filter) choose(candidates []candidate, own []netip.Addr) []Device {
	kinds := map[int]string{}
	for _, c := range candidates {
		kinds[c.Index] = c.Kind
	}
	var chosen []Device
	for _, c := range candidates {
		if c.Why = f.why(&c, kinds[c.master], own); c.Why != "" {
			chosen = append(chosen, c.Device)
		}
	}
	slices.SortFunc(chosen, func(a, b Device) int { return a.Index - b.Index })
	return chosen
}

// why returns why a device is chosen, "" if it is not.
func (f Filter) why(c *candidate, master string, own []netip.Addr) string {
	if c.loopback || !c.ethernet {
		return "" // its packets don't begin with the Ethernet header that the programs expect
	}
	listed, full := f.named(c.Name)
	if full {
		return "it is named"
	}
	switch master {
	case "bond", "team", "bridge", "openvswitch":
		return "" // its packets are handled at its master
	}
	isOwn := func(addr netip.Addr) bool { return slices.Contains(own, addr) }
	stands := standingOf(c.Kind)
	switch {
	case len(f.names) > 0:
		if listed {
			return "its name fits"
		}
	case stands == never:
	case c.Default4 || c.Default6:
		return "it has the default route"
	case slices.ContainsFunc(c.addrs, isOwn):
		return "it has the node's address"
	case stands == uplink && len(c.addrs) > 0:
		return "it has an address"
	}
	return ""
}
