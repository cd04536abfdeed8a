// Package plan fixes the address of everything in a cluster, for each IP family. Nothing is random,
// so logs and packet captures can be read without looking addresses up. All clusters use the same
// addresses; their networks never meet.
package plan

import (
	"fmt"
	"net/netip"
	"slices"
)

// MaxNodes is the largest number of nodes in a cluster.
const MaxNodes = 6

// Family says which IP families a cluster has. The first one is that of single-stack Services.
type Family string

// The families of a cluster.
const (
	IPv4 Family = "ipv4"
	Dual Family = "dual"
	IPv6 Family = "ipv6"
)

// ParseFamily returns the family with the given name.
func ParseFamily(name string) (Family, error) {
	families := []Family{IPv4, Dual, IPv6}
	if !slices.Contains(families, Family(name)) {
		return "", fmt.Errorf("family %q: want one of %q", name, families)
	}
	return Family(name), nil
}

// numbering is the address plan of one IP family.
type numbering struct {
	underlay, outside, pods, services, balancers, caller string
	podBits                                              int // prefix length of a node's pod range
	hostBase                                             int // node i has host number hostBase+i on the underlay
}

func (f Family) numberings() []numbering {
	four := numbering{
		underlay: "10.200.0.0/24", outside: "10.200.1.0/24", balancers: "10.200.2.0/24", caller: "10.203.0.2/32",
		pods: "10.201.0.0/16", services: "10.202.0.0/16", podBits: 24, hostBase: 10,
	}
	six := numbering{
		underlay: "fd00:10:200::/64", outside: "fd00:10:200:1::/64", balancers: "fd00:10:200:2::/64", caller: "fd00:10:203::2/128",
		pods: "fd00:10:201::/48", services: "fd00:10:202::/112", podBits: 64, hostBase: 0x10,
	}
	switch f {
	case IPv4:
		return []numbering{four}
	case IPv6:
		return []numbering{six}
	default:
		return []numbering{four, six}
	}
}

// collect applies a function to the plan of each IP family.
func collect[T any](f Family, of func(numbering) T) []T {
	var all []T
	for _, n := range f.numberings() {
		all = append(all, of(n))
	}
	return all
}

// Router returns the router's addresses on the nodes' network.
func (f Family) Router() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.underlay, 1) })
}

// Control returns the control plane's addresses on the nodes' network.
func (f Family) Control() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.underlay, 2) })
}

// Node returns the addresses of node i, counted from 1, on the nodes' network.
func (f Family) Node(i int) []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.underlay, n.hostBase+i) })
}

// OutsideRouter returns the router's addresses on the outer network.
func (f Family) OutsideRouter() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.outside, 1) })
}

// Outside returns the outside client's addresses on the outer network.
func (f Family) Outside() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.outside, 2) })
}

// Underlay returns the networks that the nodes are on.
func (f Family) Underlay() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.underlay) })
}

// Pods returns the ranges of the pods of all nodes.
func (f Family) Pods() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.pods) })
}

// NodePods returns the pod ranges of node i.
func (f Family) NodePods(i int) []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return nth(netip.MustParsePrefix(n.pods), n.podBits, i) })
}

// Services returns the ranges of cluster IPs.
func (f Family) Services() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.services) })
}

// Kubernetes returns the cluster IPs of the API server.
func (f Family) Kubernetes() []netip.Addr {
	return collect(f, func(n numbering) netip.Addr { return host(n.services, 1).Addr() })
}

// DNS returns the cluster IPs of the DNS service.
func (f Family) DNS() []netip.Addr {
	return collect(f, func(n numbering) netip.Addr { return host(n.services, 10).Addr() })
}

// Balancers returns ranges that nothing else in the cluster uses, for Services of type
// LoadBalancer.
func (f Family) Balancers() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.balancers) })
}

// Caller returns the addresses from which the control plane calls Services of type LoadBalancer.
// They are outside the nodes' /16 and /64, since the specs take any client from there for a node.
func (f Family) Caller() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.caller) })
}

// host returns an address of a network with the network's prefix length.
func host(network string, number int) netip.Prefix {
	prefix := netip.MustParsePrefix(network)
	bytes := prefix.Addr().AsSlice()
	bytes[len(bytes)-1] += byte(number)
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, prefix.Bits())
}

// nth returns the i-th subrange with the given prefix length, which must end at a byte.
func nth(all netip.Prefix, bits, i int) netip.Prefix {
	bytes := all.Addr().AsSlice()
	bytes[bits/8-1] += byte(i)
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, bits)
}
