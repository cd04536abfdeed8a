package lb

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"fairlead.io/fairlead/pkg/bpf"
)

// A Maglev table gives every backend the share of the slots that its weight asks for, and changes little when a backend
// comes or goes, so that nodes which learn of it at different times still agree on nearly every flow.
//
// As in Maglev, every backend has a preference among the slots, a permutation that only its address decides, and the
// backends take turns to ask for the slot that they prefer next; who asks first gets it. The difference is what happens
// when the slot is taken. In Maglev the backend asks on until it gets one. Everybody then has the same number of slots,
// but a backend that leaves changes how often the others had to ask, and through that the order of all the later
// requests: of 1,000 backends one moves 6.6 times as many slots as it had, 3.7 times of 163, and a larger table only
// pushes the problem to more backends. Here a request for a taken slot is a lost turn. Who gets a slot then
// depends on nobody but those that ask for it, and exactly the slots of the one that leaves would move, at the price of
// uneven shares. So there are bounds: a backend asks no more when it is so many slots over its fair share, and asks on,
// as in Maglev, while it is so many behind. Only those at a bound pass a change on to others.
//
// The bounds are fractions of a slot, rounded at random (by the address) for each backend: as whole numbers they would
// change for all backends at once when one leaves.

// maglevSizes are the lengths of tables: primes, so that every number has an inverse and every step leads to every slot.
func maglevSizes() [4]uint32 { return [...]uint32{1021, 4093, 16381, 65521} }

// maglevSize returns the length of the table for so many backends: 100 slots for each, as far as a table can have them.
func maglevSize(backends int) uint32 {
	sizes := maglevSizes()
	for _, size := range sizes {
		if int(size) >= 100*backends {
			return size
		}
	}
	return sizes[len(sizes)-1]
}

// Numbers of slots that are not whole are kept in units of 1/maglevOne.
const maglevOne = 1 << 16

// maglevBounds returns how far beyond its fair share a backend may get, and how far it may stay behind. The figures are
// measured: small ones that keep what one of up to 1,000 backends moves safely below 1.5 times the slots that it has. They
// are a few slots while there are few backends, up to 10 and 24 with more, as many times that as the backend is heavier
// than the average, but no large part of what a light one has.
func maglevBounds(backends int, fair, mean uint64) (above, below uint64) {
	n := uint64(backends) * maglevOne
	heavier := max(maglevOne, fair*maglevOne/mean)
	above = min(9*maglevOne, n/16) * heavier / maglevOne
	below = (3*maglevOne + min(20*maglevOne, n/3)) * heavier / maglevOne
	return maglevOne + min(above, fair/4), maglevOne + min(below, fair/2)
}

// maglevHash is a hash of the backend as it appears on the wire: FNV-1a of address, port and protocol (19 bytes), and
// the finalizer of splitmix64 over it. Tables of different versions must agree, so it never changes.
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

// maglevRandom returns the n-th random number that a hash decides, the generator being splitmix64.
func maglevRandom(hash, n uint64) uint64 { return maglevMix(hash + n*0x9e3779b97f4a7c15) }

func maglevMix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// maglevTable appends the table of the backends that shares names.
func maglevTable(dst []uint32, shares []tableShare, backends []Weighted) []uint32 {
	size := int(maglevSize(len(shares)))
	base := len(dst)
	dst = slices.Grow(dst, size)[:base+size]
	maglevFill(dst[base:], shares, backends)
	return dst
}

// maglevFill fills in slots, whose length is one of the sizes.
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

// maglevTurn is the place of a backend in the order in which they ask: the heavy ones first, then by hash, so that it
// does not matter in which order they were given.
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

// maglevBackend is what has preferences. The n-th is the slot step/n + start, modulo the size of the table, and 1/0 is 0.
// With step*n, two backends that happen to have the same step would follow each other through the table, and the one
// behind would find nothing but taken slots.
type maglevBackend struct {
	alarm       uint64 // it is too far behind when more slots than this are taken, in units of 1/maglevOne
	turn        uint32 // its place in the order
	next        uint32 // the number of its next preference
	step, start uint16
}

// maglevStream is the backends of one weight. A stream of half the weight has half as many turns.
type maglevStream struct {
	share, credit uint32
	pace          uint64 // how many slots all take while one of these takes one, in units of 1/maglevOne
	backends      []maglevBackend
}

// maglevWords is the length of a bitmap of slots.
const maglevWords = 1 << 16 / 64

// maglevBuilder is a table that is being filled.
type maglevBuilder struct {
	slots      []uint32 // by turn
	inverses   []uint16 // of the numbers modulo the size
	reciprocal uint64
	left       []uint32 // the slots that a backend may still take, by turn
	taken      uint32
	bitmap     [maglevWords]uint64 // the taken slots: unlike the slots themselves it fits the fastest cache
	streams    []maglevStream
}

// modulo returns x modulo the size, with two multiplications in place of a division.
func (b *maglevBuilder) modulo(x uint32) uint32 {
	high, _ := bits.Mul64(b.reciprocal*uint64(x), uint64(len(b.slots)))
	return uint32(high)
}

// line makes the streams.
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

// backend returns what has the preferences that a hash decides.
func (b *maglevBuilder) backend(hash uint64) maglevBackend {
	size := uint64(len(b.slots))
	return maglevBackend{
		step:  uint16(1 + maglevRandom(hash, 2)%(size-1)),
		start: uint16(maglevRandom(hash, 3) % size),
	}
}

// seed gives everybody one slot, however light, or as many of them as there are slots.
func (b *maglevBuilder) seed() {
	for _, s := range b.streams {
		for i := range s.backends {
			for b.taken < uint32(len(b.slots)) && !b.ask(&s.backends[i], s.pace) {
			}
		}
	}
}

// fill lets the backends take turns until nearly every slot is taken. There is always one that may still take some,
// since together their limits are no less than the slots.
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

// turn lets every backend of a stream ask once, and those that are too far behind until they no longer are.
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

// finish takes the slots that are left, for which the backends would have to ask many times before they hit on them.
// Each joins another slot, by preferences that the slots have among themselves. Whose slot that is changes no more
// often than the rest of the table does.
func (b *maglevBuilder) finish() {
	for slot := range uint32(len(b.slots)) {
		if !b.free(slot) {
			continue
		}
		preferences := b.backend(maglevMix(uint64(slot)))
		for {
			other := b.prefer(&preferences)
			// Slots that this loop filled stay free in the bitmap: their order must not matter.
			if turn := b.slots[other]; !b.free(other) && b.left[turn] > 0 {
				b.left[turn]--
				b.slots[slot] = turn
				break
			}
		}
	}
}

// ask gives the backend the slot that it prefers next, if that is free.
func (b *maglevBuilder) ask(backend *maglevBackend, pace uint64) bool {
	slot := b.prefer(backend)
	free := b.free(slot)
	if free {
		b.take(backend, slot, pace)
	}
	return free
}

// prefer returns the slot that is preferred next.
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
