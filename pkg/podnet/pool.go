package podnet

import (
	"math"
	"net/netip"
)

// pool gives out the addresses of one CIDR: first those that were never used since the agent started, in order, then
// those that came back, the longest ago first, and then those that were somebody else's when their turn came. It only
// remembers where it is; whoever asks says what is taken.
type pool struct {
	prefix netip.Prefix
	next   netip.Addr   // never given out yet; invalid when there is none left
	back   []netip.Addr // that came back and have rested, in that order
}

func newPool(prefix netip.Prefix) *pool {
	return &pool{prefix: prefix.Masked(), next: first(prefix)}
}

// first returns the lowest address for a pod. The lowest of an IPv4 network is its name and that of IPv6 is for any
// router; where there are but two addresses or one, they are for use.
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
	// The highest of an IPv4 network is for broadcasts.
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

// scan returns the first address from there on that is not taken.
func (p *pool) scan(from netip.Addr, taken func(netip.Addr) bool) (netip.Addr, bool) {
	for addr := from; p.has(addr); addr = addr.Next() {
		if !taken(addr) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// size returns how many addresses there are for pods.
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
