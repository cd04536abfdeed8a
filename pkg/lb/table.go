package lb

import (
	"cmp"
	"slices"

	"fairlead.io/fairlead/pkg/bpf"
)

// MaxSlots is the largest number of slots in a table, limited by the length field in a service's
// row. It is also the largest number of backends in a table; Table leaves out the rest.
const MaxSlots = 1<<16 - 1

// Weighted is a backend with its relative share of new connections.
type Weighted struct {
	Backend bpf.MapsBackend
	Weight  uint16
}

// Table appends the slots of a table for the backends and returns the extended slice. A slot is a
// position in the list of backends. The same list gives the same table on every node and every
// architecture.
//
// A backend of weight 0 gets no slot, unless all weights are 0; then all backends count the same.
// Backends of equal weight get one slot each, in order. Otherwise each backend gets as many slots
// as its weight, divided by the greatest common divisor of all weights, in an order that spreads
// every backend's slots. Weights that need more than MaxSlots are scaled down, and every backend
// keeps at least one slot. Of more than MaxSlots backends a pseudo-random subset is used, which
// changes little when the backends change.
//
// Maglev needs its large table only if connections arrive as packets through more than one node,
// which external says. Otherwise it gets the same table as the other algorithms.
//
// With equal weights and enough room in dst nothing is allocated, except for a Maglev table.
func Table(dst []uint32, a Algorithm, external bool, backends []Weighted) []uint32 {
	return tableWithin(dst, a, external, backends, MaxSlots)
}

// tableWithin is Table with at most limit slots, which must not exceed MaxSlots. A Maglev table then
// has the largest length that fits, or becomes that of the other algorithms if none does.
func tableWithin(dst []uint32, a Algorithm, external bool, backends []Weighted, limit int) []uint32 {
	weights := tableWeigh(backends)
	size := maglevWithin(weights.count, limit)
	switch {
	case weights.count > limit:
		return tableOfSome(dst, a, external, backends, limit)
	case a == Maglev && external && weights.count > 1 && size > 0:
		return maglevTable(dst, tableShares(backends, weights), backends, size)
	case weights.lowest < weights.highest:
		shares := tableShares(backends, weights)
		tableFit(shares, uint64(limit))
		return tableInterleave(dst, shares)
	}
	for i := range backends {
		if backends[i].Weight == weights.highest {
			dst = append(dst, uint32(i))
		}
	}
	return dst
}

// tableWeights summarizes the backends that count: those with a positive weight or, if there are
// none, all of them.
type tableWeights struct {
	count           int
	lowest, highest uint16
}

func tableWeigh(backends []Weighted) tableWeights {
	var w tableWeights
	for i := range backends {
		weight := backends[i].Weight
		if weight == 0 {
			continue
		}
		if w.count == 0 || weight < w.lowest {
			w.lowest = weight
		}
		w.highest = max(w.highest, weight)
		w.count++
	}
	if w.count == 0 {
		w.count = len(backends)
	}
	return w
}

// tableShare is the position of a backend that counts, and its relative share of the table.
type tableShare struct {
	position, share uint32
}

func tableShares(backends []Weighted, weights tableWeights) []tableShare {
	shares := make([]tableShare, 0, weights.count)
	for i := range backends {
		weight := uint32(backends[i].Weight)
		if weights.highest == 0 {
			weight = 1
		}
		if weight > 0 {
			shares = append(shares, tableShare{uint32(i), weight})
		}
	}
	return shares
}

// tableFit turns weights into numbers of slots whose sum is at most limit.
func tableFit(shares []tableShare, limit uint64) {
	divisor, total, highest := uint32(0), uint64(0), uint64(0)
	for _, s := range shares {
		divisor = tableGCD(s.share, divisor)
		total += uint64(s.share)
		highest = max(highest, uint64(s.share))
	}
	if total/uint64(divisor) <= limit {
		for i := range shares {
			shares[i].share /= divisor
		}
		return
	}
	// Find the smallest denominator that fits: at the lower bound no share is rounded up to one
	// slot, at the upper bound all are.
	low, high := total, highest*limit+1
	for low < high {
		middle := low + (high-low)/2
		if tableScaled(shares, middle, limit) <= limit {
			high = middle
		} else {
			low = middle + 1
		}
	}
	for i := range shares {
		shares[i].share = tableScale(shares[i].share, low, limit)
	}
}

func tableScale(share uint32, denominator, limit uint64) uint32 {
	return max(1, uint32(uint64(share)*limit/denominator))
}

func tableScaled(shares []tableShare, denominator, limit uint64) (total uint64) {
	for _, s := range shares {
		total += uint64(tableScale(s.share, denominator, limit))
	}
	return total
}

func tableGCD(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// tableInterleave appends share slots for every backend. Backends of the same share take turns on a
// common stream of slots, and each stream is spread evenly over the whole table. Without streams,
// all backends with a single slot would want the same place, the middle.
func tableInterleave(dst []uint32, shares []tableShare) []uint32 {
	slices.SortStableFunc(shares, func(a, b tableShare) int { return cmp.Compare(b.share, a.share) })
	var total uint64
	for _, s := range shares {
		total += uint64(s.share)
	}
	// A counting sort by place, since a stream wants a place at most once and few streams want the
	// same place.
	starts := make([]uint32, total+1)
	tableStreams(shares, total, func(place uint64, _ uint32) { starts[place+1]++ })
	for i := range total {
		starts[i+1] += starts[i]
	}
	base := len(dst)
	dst = append(dst, make([]uint32, total)...)
	tableStreams(shares, total, func(place uint64, position uint32) {
		dst[base+int(starts[place])] = position
		starts[place]++
	})
	return dst
}

// tableStreams visits every slot of every stream with the place it wants: the k-th of n slots wants
// the middle of the k-th of n equal parts of the table.
func tableStreams(shares []tableShare, total uint64, visit func(place uint64, position uint32)) {
	for len(shares) > 0 {
		members := 1
		for members < len(shares) && shares[members].share == shares[0].share {
			members++
		}
		slots := uint64(members) * uint64(shares[0].share)
		member := 0
		for k := range slots {
			visit((2*k+1)*total/(2*slots), shares[member].position)
			if member++; member == members {
				member = 0
			}
		}
		shares = shares[members:]
	}
}

// tableOfSome is tableWithin for more than limit backends. It uses those with the lowest hashes, so a
// backend that comes or goes changes at most one other.
func tableOfSome(dst []uint32, a Algorithm, external bool, backends []Weighted, limit int) []uint32 {
	type ranked struct {
		hash     uint64
		position uint32
	}
	weights := tableWeigh(backends)
	ranks := make([]ranked, 0, weights.count)
	for i := range backends {
		if backends[i].Weight > 0 || weights.highest == 0 {
			ranks = append(ranks, ranked{maglevHash(&backends[i].Backend), uint32(i)})
		}
	}
	slices.SortFunc(ranks, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.position, b.position))
	})
	ranks = ranks[:limit]
	slices.SortFunc(ranks, func(a, b ranked) int { return cmp.Compare(a.position, b.position) })
	some := make([]Weighted, len(ranks))
	for i, r := range ranks {
		some[i] = backends[r.position]
	}
	base := len(dst)
	dst = tableWithin(dst, a, external, some, limit)
	for i, position := range dst[base:] {
		dst[base+i] = ranks[position].position
	}
	return dst
}
