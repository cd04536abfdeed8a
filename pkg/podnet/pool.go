package podnet

import (
	"math"
	"net/netip"
)

// pool gives out the addresses of one CIDR: first, in order, those never used since the agent
// started, then those that came back, the earliest first, and then those that others had when their
// turn came. It only remembers its position; the caller says what is taken.
type pool struct {
	prefix netip.Prefix
	next   netip.Addr   // the first address never given out; invalid when there is none
	back   []netip.Addr // addresses that came back and have rested, in that order
}

func newPool(prefix netip.Prefix) *pool {
	return &pool{prefix: prefix.Masked(), next: first(prefix)}
}

// first returns the lowest address for a pod. The lowest of an IPv4 network names the network, and
// that of an IPv6 network is the subnet-router anycast address. Networks of one or two addresses
// use them all.
func first(prefix netip.Prefix) netip.Addr {
	addr := prefix.Masked().Addr()
	if prefix.Bits() >= addr.BitLen()-1 {
		return addr
	}
	return addr.Next()
}

// has reports whether an address is for a pod.
func (p *pool) has(addr netip.Addr) bool {
	if !p.prefix.Contains(addr) || addr.Compare(first(p.prefix)) < 0 {
		return false
	}
	// The highest of an IPv4 network is the broadcast address.
	return addr.Is6() || p.prefix.Bits() >= 31 || p.prefix.Contains(addr.Next())
}

// take returns an address that is not taken, or false if there is none.
func (p *pool) take(taken func(netip.Addr) bool) (netip.Addr, bool) {
	if p.next.IsValid() {
		addr, ok := p.scan(p.next, taken)
		if p.next = addr.Next(); !ok || !p.has(p.next) {
			p.next = netip.Addr{}
		}
		if ok {
			return addr, true
		}
	}
	for len(p.back) > 0 {
		addr := p.back[0]
		p.back = p.back[1:]
		if !taken(addr) {
			return addr, true
		}
	}
	return p.scan(first(p.prefix), taken)
}

// scan returns the first address at or after from that is not taken.
func (p *pool) scan(from netip.Addr, taken func(netip.Addr) bool) (netip.Addr, bool) {
	for addr := from; p.has(addr); addr = addr.Next() {
		if !taken(addr) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// size returns the number of addresses for pods.
func (p *pool) size() float64 {
	bits := p.prefix.Addr().BitLen() - p.prefix.Bits()
	n := math.Exp2(float64(bits))
	switch {
	case bits <= 1:
		return n
	case p.prefix.Addr().Is4():
		return n - 2
	}
	return n - 1
}
