package policy

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/model"
)

// Narrowed compares tables that need not have the same numbers for the same things. The function that it returns
// reports whether something may be denied to a subject of the latter that was accepted to one of the former.
func Narrowed(before, after *Tables) func(was, is uint32) bool {
	pairs := map[[2]uint32]struct{}{}
	for _, t := range []*Tables{before, after} {
		for addr := range t.Peers {
			pairs[[2]uint32{before.Class(addr), after.Class(addr)}] = struct{}{}
		}
		for prefix := range t.Regions {
			pairs[[2]uint32{before.region(prefix.Addr(), prefix.Bits()), after.region(prefix.Addr(), prefix.Bits())}] = struct{}{}
		}
	}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		pairs[[2]uint32{before.region(any, 0), after.region(any, 0)}] = struct{}{}
	}
	decisions, subjects := map[[2]uint32]bool{}, map[[2]uint32]bool{}
	narrowed := func(was, is uint32) bool {
		for pair := range pairs {
			for direction := range model.Direction(model.Directions) {
				key := [2]uint32{before.number(was, direction, pair[0]), after.number(is, direction, pair[1])}
				lost, known := decisions[key]
				if !known {
					lost = narrows(before.decision(was, direction, pair[0]), after.decision(is, direction, pair[1]))
					decisions[key] = lost
				}
				if lost {
					return true
				}
			}
		}
		return false
	}
	return func(was, is uint32) bool {
		if is == 0 {
			return false
		}
		lost, known := subjects[[2]uint32{was, is}]
		if !known {
			lost = narrowed(was, is)
			subjects[[2]uint32{was, is}] = lost
		}
		return lost
	}
}
