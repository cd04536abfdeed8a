// Package plan says which address everything in a cluster has, in each family. Nothing is drawn by chance, so what a
// log or a capture shows can be read without looking it up. Two clusters have the same addresses and never meet.
package plan

import (
	"fmt"
	"net/netip"
	"slices"
)

// MaxNodes is how many nodes a cluster may have.
const MaxNodes = 6

// Family says which IP families a cluster has, the first being the one that single-stack Services get.
type Family string

// The families of a cluster.
const (
	IPv4 Family = "ipv4"
	Dual Family = "dual"
	IPv6 Family = "ipv6"
)

// ParseFamily returns the family of that name.
func ParseFamily(name string) (Family, error) {
	families := []Family{IPv4, Dual, IPv6}
	if !slices.Contains(families, Family(name)) {
		return "", fmt.Errorf("family %q: there are %q", name, families)
	}
	return Family(name), nil
}

// numbering is the address plan of one IP family.
type numbering struct {
	underlay, outside, pods, services, balancers, caller string
	podBits                                              int // of a node's share of pods
	hostBase                                             int // node i has the address hostBase+i on the underlay
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

// collect applies a function to each family's plan.
func collect[T any](f Family, of func(numbering) T) []T {
	var all []T
	for _, n := range f.numberings() {
		all = append(all, of(n))
	}
	return all
}

// Router returns the addresses of the router on the network of the nodes.
func (f Family) Router() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.underlay, 1) })
}

// Control returns the addresses of the control plane on the network of the nodes.
func (f Family) Control() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.underlay, 2) })
}

// Node returns the addresses of a node, which counts from 1, on the network of the nodes.
func (f Family) Node(i int) []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.underlay, n.hostBase+i) })
}

// OutsideRouter returns the addresses of the router on the outer network.
func (f Family) OutsideRouter() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.outside, 1) })
}

// Outside returns the addresses of the client on the outer network.
func (f Family) Outside() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return host(n.outside, 2) })
}

// Underlay returns the networks that the nodes are on.
func (f Family) Underlay() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.underlay) })
}

// Pods returns the ranges that the pods of all nodes are in.
func (f Family) Pods() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.pods) })
}

// NodePods returns the ranges that the pods of a node are in.
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

// Balancers returns ranges that nothing of the cluster uses: addresses for Services of type LoadBalancer.
func (f Family) Balancers() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.balancers) })
}

// Caller returns the addresses from which the control plane calls Services of type LoadBalancer. The specs take whoever
// comes from the nodes' /16 or /64 for a node.
func (f Family) Caller() []netip.Prefix {
	return collect(f, func(n numbering) netip.Prefix { return netip.MustParsePrefix(n.caller) })
}

// host returns an address of a network, with the length of the network.
func host(network string, number int) netip.Prefix {
	prefix := netip.MustParsePrefix(network)
	bytes := prefix.Addr().AsSlice()
	bytes[len(bytes)-1] += byte(number)
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, prefix.Bits())
}

// nth returns a part of a range: number i of those with that many bits, which end at a byte.
func nth(all netip.Prefix, bits, i int) netip.Prefix {
	bytes := all.Addr().AsSlice()
	bytes[bits/8-1] += byte(i)
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, bits)
}
