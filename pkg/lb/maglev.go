package lb

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"fairlead.io/fairlead/pkg/bpf"
)

// A Maglev table gives every backend the share of the slots that its weight asks for, and changes
// little when a backend comes or goes. Nodes that learn of the change at different times then still
// agree on nearly every flow.
//
// As in the original Maglev, every backend has a preference list, a permutation of the slots that
// depends on its address alone, and backends take turns asking for the slot they prefer next. The
// first to ask gets it. The difference is what happens when the slot is taken. In the original, the
// backend keeps asking until it gets one. Every backend then has the same number of slots, but a
// backend that leaves changes how often the others had to ask, and thereby the order of all later
// requests: removing one of 1,000 backends moves 6.6 times as many slots as it had (3.7 times with
// 163 backends), and a larger table only shifts the problem to more backends. Here a request for a
// taken slot is a lost turn. Which backend gets a slot then depends only on the backends that ask
// for it, so exactly the slots of a leaving backend would move, at the price of uneven shares. Two
// bounds limit the unevenness: a backend stops asking once it is too many slots over its fair
// share, and keeps asking within its turn, as in the original, while it is too many behind. Only
// backends at a bound pass a change on to others.
//
// The bounds are fractions of a slot, rounded for each backend at random, seeded by its address: as
// whole numbers they would change for all backends at once when one leaves.

// maglevSizes returns the table lengths. They are primes, so that every number has an inverse and
// every step reaches every slot.
func maglevSizes() [4]uint32 { return [...]uint32{1021, 4093, 16381, 65521} }

// maglevSize returns the table length for a number of backends: at least 100 slots each, as far as
// a table can have that many.
func maglevSize(backends int) uint32 {
	sizes := maglevSizes()
	for _, size := range sizes {
		if int(size) >= 100*backends {
			return size
		}
	}
	return sizes[len(sizes)-1]
}

// maglevWithin returns the table length for a number of backends if a table can have only limit
// slots, or 0 if no length fits.
func maglevWithin(backends, limit int) uint32 {
	sizes := maglevSizes()
	size := maglevSize(backends)
	if int(size) <= limit {
		return size
	}
	for i := len(sizes) - 1; i >= 0; i-- {
		if int(sizes[i]) <= limit && int(sizes[i]) >= backends {
			return sizes[i]
		}
	}
	return 0
}

// Fractional numbers of slots are kept in units of 1/maglevOne.
const maglevOne = 1 << 16

// maglevBounds returns how many slots a backend may get beyond its fair share, and how many it may
// stay behind. The constants were found by measurement: small values that keep the slots moved by
// one of up to 1,000 backends safely below 1.5 times its own. The bounds are a few slots for few
// backends and grow to 10 and 24. They scale with a backend's weight if that is above average, and
// are capped at a fraction of the fair share, which matters for light backends.
func maglevBounds(backends int, fair, mean uint64) (above, below uint64) {
	n := uint64(backends) * maglevOne
	heavier := max(maglevOne, fair*maglevOne/mean)
	above = min(9*maglevOne, n/16) * heavier / maglevOne
	below = (3*maglevOne + min(20*maglevOne, n/3)) * heavier / maglevOne
	return maglevOne + min(above, fair/4), maglevOne + min(below, fair/2)
}

// maglevHash hashes the backend as it appears on the wire: FNV-1a of address, port and protocol (19
// bytes), followed by the splitmix64 finalizer. Tables built by different versions must agree, so
// it must never change.
func maglevHash(backend *bpf.MapsBackend) uint64 {
	var wire [19]byte
	for i, word := range backend.Addr.Word {
		binary.NativeEndian.PutUint32(wire[4*i:], word)
	}
	binary.NativeEndian.PutUint16(wire[16:], backend.Port)
	wire[18] = backend.Proto
	hash := uint64(0xcbf29ce484222325)
	for _, b := range wire {
		hash = (hash ^ uint64(b)) * 0x100000001b3
	}
	return maglevMix(hash)
}

// maglevRandom returns the n-th number of the splitmix64 generator seeded with hash.
func maglevRandom(hash, n uint64) uint64 { return maglevMix(hash + n*0x9e3779b97f4a7c15) }

func maglevMix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// maglevTable appends the Maglev table of the backends listed in shares.
func maglevTable(dst []uint32, shares []tableShare, backends []Weighted, size uint32) []uint32 {
	base := len(dst)
	dst = slices.Grow(dst, int(size))[:base+int(size)]
	maglevFill(dst[base:], shares, backends)
	return dst
}

// maglevFill fills slots, whose length must be one of maglevSizes.
func maglevFill(slots []uint32, shares []tableShare, backends []Weighted) {
	b := maglevBuilder{slots: slots, reciprocal: ^uint64(0)/uint64(len(slots)) + 1}
	b.inverses = make([]uint16, len(slots))
	b.inverses[1] = 1
	size := uint32(len(slots))
	for i := uint32(2); i < size; i++ {
		b.inverses[i] = uint16(b.modulo((size - size/i) * uint32(b.inverses[size%i])))
	}
	turns := maglevTurns(shares, backends)
	b.line(turns)
	b.seed()
	b.fill()
	b.finish()
	for i, turn := range slots {
		slots[i] = turns[turn].position
	}
}

// maglevTurn is a backend's place in the order of asking: by descending weight, then by hash, so
// that the order of the input does not matter.
type maglevTurn struct {
	hash uint64
	tableShare
}

func maglevTurns(shares []tableShare, backends []Weighted) []maglevTurn {
	turns := make([]maglevTurn, len(shares))
	for i, s := range shares {
		turns[i] = maglevTurn{maglevHash(&backends[s.position].Backend), s}
	}
	slices.SortFunc(turns, func(a, b maglevTurn) int {
		return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.hash, b.hash), cmp.Compare(a.position, b.position))
	})
	return turns
}

// maglevBackend generates a backend's preferences. The n-th is slot step/n + start modulo the size
// of the table, where 1/0 is 0. With step*n instead, two backends that happen to have the same step
// would follow each other through the table, and the second would find only taken slots.
type maglevBackend struct {
	alarm       uint64 // it is too far behind once more slots than this are taken, in units of 1/maglevOne
	turn        uint32 // its place in the order
	next        uint32 // the number of its next preference
	step, start uint16
}

// maglevStream holds the backends of one weight. A stream of half the weight gets half as many
// turns.
type maglevStream struct {
	share, credit uint32
	pace          uint64 // slots taken by all while a backend of this stream takes one, in units of 1/maglevOne
	backends      []maglevBackend
}

// maglevWords is the length of a bitmap of slots.
const maglevWords = 1 << 16 / 64

// maglevBuilder is a table under construction.
type maglevBuilder struct {
	slots      []uint32 // by turn
	inverses   []uint16 // of all numbers modulo the size
	reciprocal uint64
	left       []uint32 // how many slots each backend may still take, by turn
	taken      uint32
	bitmap     [maglevWords]uint64 // the taken slots; unlike slots, it fits the fastest cache
	streams    []maglevStream
}

// modulo returns x modulo the size, using two multiplications instead of a division.
func (b *maglevBuilder) modulo(x uint32) uint32 {
	high, _ := bits.Mul64(b.reciprocal*uint64(x), uint64(len(b.slots)))
	return uint32(high)
}

// line builds the streams.
func (b *maglevBuilder) line(turns []maglevTurn) {
	var total uint64
	for _, t := range turns {
		total += uint64(t.share)
	}
	size := uint64(len(b.slots))
	b.left = make([]uint32, 0, len(turns))
	lined := make([]maglevBackend, 0, len(turns))
	for first := 0; first < len(turns); first = len(lined) {
		share := turns[first].share
		fair := size * maglevOne * uint64(share) / total
		pace := total * maglevOne / uint64(share)
		above, below := maglevBounds(len(turns), fair, size*maglevOne/uint64(len(turns)))
		for _, t := range turns[first:] {
			if t.share != share {
				break
			}
			round := maglevRandom(t.hash, 1) % maglevOne
			backend := b.backend(t.hash)
			backend.turn = uint32(len(lined))
			backend.alarm = (below - round) * pace / maglevOne
			lined = append(lined, backend)
			b.left = append(b.left, uint32((fair+above+round)/maglevOne))
		}
		b.streams = append(b.streams, maglevStream{share: share, pace: pace, backends: lined[first:len(lined):len(lined)]})
	}
}

// backend returns the preference generator for a hash.
func (b *maglevBuilder) backend(hash uint64) maglevBackend {
	size := uint64(len(b.slots))
	return maglevBackend{
		step:  uint16(1 + maglevRandom(hash, 2)%(size-1)),
		start: uint16(maglevRandom(hash, 3) % size),
	}
}

// seed gives every backend one slot, however light it is, until the slots run out.
func (b *maglevBuilder) seed() {
	for _, s := range b.streams {
		for i := range s.backends {
			for b.taken < uint32(len(b.slots)) && !b.ask(&s.backends[i], s.pace) {
			}
		}
	}
}

// fill lets the backends take turns until nearly every slot is taken. Some backend may always take
// more, since the sum of their limits is no less than the number of slots.
func (b *maglevBuilder) fill() {
	enough := uint32(len(b.slots) - len(b.slots)/256)
	for b.taken < enough {
		heaviest := b.streams[0].share
		for i := range b.streams {
			s := &b.streams[i]
			if s.credit += s.share; s.credit >= heaviest {
				s.credit -= heaviest
				b.turn(s)
			}
		}
		b.streams = slices.DeleteFunc(b.streams, func(s maglevStream) bool { return len(s.backends) == 0 })
	}
}

// turn lets every backend of a stream ask once. Backends that are too far behind ask until they are
// not.
func (b *maglevBuilder) turn(s *maglevStream) {
	done := 0
	for i := range s.backends {
		backend := &s.backends[i]
		if b.left[backend.turn] == 0 {
			done++
			continue
		}
		if slot := b.prefer(backend); b.free(slot) {
			b.take(backend, slot, s.pace)
		}
		for b.behind(backend) && b.left[backend.turn] > 0 {
			b.ask(backend, s.pace)
		}
	}
	if 8*done > len(s.backends) {
		s.backends = slices.DeleteFunc(s.backends, func(m maglevBackend) bool { return b.left[m.turn] == 0 })
	}
}

// finish assigns the remaining slots, which backends would reach only after asking many times. Each
// slot copies the owner of another slot, found through a preference list of its own. The owner
// changes no more often than the rest of the table does.
func (b *maglevBuilder) finish() {
	for slot := range uint32(len(b.slots)) {
		if !b.free(slot) {
			continue
		}
		preferences := b.backend(maglevMix(uint64(slot)))
		for {
			other := b.prefer(&preferences)
			// The bitmap does not mark the slots that this loop fills as taken, so the order in
			// which they are filled does not matter.
			if turn := b.slots[other]; !b.free(other) && b.left[turn] > 0 {
				b.left[turn]--
				b.slots[slot] = turn
				break
			}
		}
	}
}

// ask gives the backend the slot it prefers next, if that slot is free.
func (b *maglevBuilder) ask(backend *maglevBackend, pace uint64) bool {
	slot := b.prefer(backend)
	free := b.free(slot)
	if free {
		b.take(backend, slot, pace)
	}
	return free
}

// prefer returns the slot that the backend prefers next.
func (b *maglevBuilder) prefer(backend *maglevBackend) uint32 {
	slot := b.modulo(uint32(backend.step)*uint32(b.inverses[backend.next]) + uint32(backend.start))
	if backend.next++; int(backend.next) == len(b.inverses) {
		backend.next = 0
	}
	return slot
}

func (b *maglevBuilder) behind(backend *maglevBackend) bool {
	return uint64(b.taken)*maglevOne > backend.alarm && b.taken < uint32(len(b.slots))
}

func (b *maglevBuilder) free(slot uint32) bool {
	return b.bitmap[slot/64%maglevWords]>>(slot%64)&1 == 0
}

func (b *maglevBuilder) take(backend *maglevBackend, slot uint32, pace uint64) {
	b.bitmap[slot/64%maglevWords] |= 1 << (slot % 64)
	b.slots[slot] = backend.turn
	b.taken++
	b.left[backend.turn]--
	backend.alarm += pace
}
