package nodes

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// cover finds the network that has an address, among networks of any length.
type cover[V any] struct {
	networks map[netip.Prefix]V
	bits     []int // the lengths that there are
}

func newCover[V any](networks map[netip.Prefix]V) *cover[V] {
	lengths := map[int]bool{}
	for p := range networks {
		lengths[p.Bits()] = true
	}
	return &cover[V]{maps.Clone(networks), slices.Collect(maps.Keys(lengths))}
}

func (c *cover[V]) find(addr netip.Addr) (netip.Prefix, bool) {
	for _, bits := range c.bits {
		p, err := addr.Prefix(bits)
		if _, ok := c.networks[p]; err == nil && ok {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// overlaps is a set of networks none of which contains another, in order.
type overlaps struct{ sorted []netip.Prefix }

func (o *overlaps) at(p netip.Prefix) int {
	at, _ := slices.BinarySearchFunc(o.sorted, p, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return at
}

// find returns a network of the set that overlaps with p.
func (o *overlaps) find(p netip.Prefix) (netip.Prefix, bool) {
	at := o.at(p)
	for _, near := range []int{at - 1, at} {
		if near >= 0 && near < len(o.sorted) && o.sorted[near].Overlaps(p) {
			return o.sorted[near], true
		}
	}
	return netip.Prefix{}, false
}

func (o *overlaps) add(p netip.Prefix) { o.sorted = slices.Insert(o.sorted, o.at(p), p) }

// addrs finds whether a network has one of some addresses.
type addrs struct{ sorted []netip.Addr }

func sortedAddrs(of iter.Seq[netip.Addr]) addrs {
	return addrs{slices.SortedFunc(of, netip.Addr.Compare)}
}

func (a addrs) within(p netip.Prefix) bool {
	at, _ := slices.BinarySearchFunc(a.sorted, p.Addr(), netip.Addr.Compare)
	return at < len(a.sorted) && p.Contains(a.sorted[at])
}
