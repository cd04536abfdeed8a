package lb

import (
	"fmt"
	"math"
	"math/bits"
)

// extentOrders is how many sizes of extent there are: 1, 2, 4, ... 65536 slots.
const extentOrders = 17

// Extents hands out ranges of the slots map. It is a buddy allocator: a range is a power of two
// long and starts at a multiple of its length. A freed range may be handed out again at once. The
// allocator takes half a byte per slot, used or not.
//
// It is not safe for concurrent use. The zero value has no capacity.
type Extents struct {
	free     [extentOrders]bitTree  // the free ranges of each size, by number; two buddies are never both in it
	used     [extentOrders][]uint64 // the ranges in use, likewise; catches a wrong Free when it happens
	capacity uint32
	inUse    uint32
}

// NewExtents returns an allocator of capacity free slots.
func NewExtents(capacity uint32) *Extents {
	e := &Extents{}
	e.Grow(capacity)
	return e
}

// Capacity returns the total number of slots.
func (e *Extents) Capacity() uint32 { return e.capacity }

// Used returns the number of slots in use, including those added by rounding lengths up.
func (e *Extents) Used() uint32 { return e.inUse }

// Grow adds slots at the end until there are capacity of them. It never removes any.
func (e *Extents) Grow(capacity uint32) {
	for order := range e.free {
		e.free[order].grow(capacity >> order)
		words := int((uint64(capacity>>order) + 63) / 64)
		e.used[order] = append(e.used[order], make([]uint64, max(0, words-len(e.used[order])))...)
	}
	for off := e.capacity; off < capacity; {
		// The largest range that may start here and does not reach beyond the end.
		order := min(bits.TrailingZeros32(off), bits.Len32(capacity-off)-1, extentOrders-1)
		e.put(off, order)
		off += 1 << order
	}
	e.capacity = max(e.capacity, capacity)
}

// extentOrder returns the order of the smallest extent of n slots, and false if n is 0 or no extent
// is large enough.
func extentOrder(n uint32) (int, bool) {
	order := bits.Len32(n - 1)
	return order, n > 0 && order < extentOrders
}

// Fits reports whether Alloc of n slots would succeed.
func (e *Extents) Fits(n uint32) bool {
	order, ok := extentOrder(n)
	return ok && e.smallest(order) < extentOrders
}

// Need returns a capacity for Grow at which Alloc of n slots succeeds. More than n slots may have
// to be added, since a range of the right length need not start where the slots end. If nothing has
// to grow, or growing does not help, Need returns the present capacity.
func (e *Extents) Need(n uint32) uint32 {
	order, ok := extentOrder(n)
	if !ok || e.Fits(n) {
		return e.capacity
	}
	size := uint64(1) << order
	need := (uint64(e.capacity)+size-1)&^(size-1) + size
	if need > math.MaxUint32 {
		return e.capacity
	}
	return uint32(need)
}

// smallest returns the smallest order, starting at the given one, that has a free range.
func (e *Extents) smallest(order int) int {
	for order < extentOrders && e.free[order].empty() {
		order++
	}
	return order
}

// Alloc returns the first slot of an extent of at least n slots. It returns false if no free range
// is long enough, or if n is 0 or more than 65536.
func (e *Extents) Alloc(n uint32) (off uint32, ok bool) {
	order, ok := extentOrder(n)
	if !ok {
		return 0, false
	}
	from := e.smallest(order)
	if from == extentOrders {
		return 0, false
	}
	number, _ := e.free[from].first()
	off = number << from
	e.take(off, order, from)
	return off, true
}

// take marks the range of that order at off as used, splitting the free range of order from that
// contains it.
func (e *Extents) take(off uint32, order, from int) {
	e.free[from].remove(off >> from)
	for from--; from >= order; from-- {
		e.free[from].add(off>>from ^ 1)
	}
	number := off >> order
	e.used[order][number/64] |= 1 << (number % 64)
	e.inUse += 1 << order
}

// Reserve marks the extent of n slots at off as used; an earlier allocator handed it out. It
// returns an error, and changes nothing, if Alloc could not have returned that extent or if any of
// it is in use.
func (e *Extents) Reserve(off, n uint32) error {
	order, ok := extentOrder(n)
	switch {
	case !ok:
		return fmt.Errorf("reserve extent %d+%d: no such length", off, n)
	case off&(1<<order-1) != 0:
		return fmt.Errorf("reserve extent %d+%d: not at a multiple of %d", off, n, 1<<order)
	case uint64(off)+1<<order > uint64(e.capacity):
		return fmt.Errorf("reserve extent %d+%d: beyond the last of %d slots", off, n, e.capacity)
	}
	for from := order; from < extentOrders; from++ {
		if e.free[from].has(off >> from) {
			e.take(off, order, from)
			return nil
		}
	}
	return fmt.Errorf("reserve extent %d+%d: overlaps another extent", off, n)
}

// Free makes the slots of an extent available again. The n is the one it was allocated or reserved
// with. Free panics if there is no such extent: carrying on would let two services share slots.
func (e *Extents) Free(off, n uint32) {
	order, ok := extentOrder(n)
	number := off >> order
	if !ok || off&(1<<order-1) != 0 || uint64(off) >= uint64(e.capacity) || !e.isUsed(number, order) {
		panic(fmt.Sprintf("lb: free of extent %d+%d, which is not in use", off, n))
	}
	e.used[order][number/64] &^= 1 << (number % 64)
	e.inUse -= 1 << order
	e.put(off, order)
}

func (e *Extents) isUsed(number uint32, order int) bool {
	words := e.used[order]
	return int(number/64) < len(words) && words[number/64]>>(number%64)&1 != 0
}

// put adds a free range, merging it with its free buddies into a larger one.
func (e *Extents) put(off uint32, order int) {
	for ; order < extentOrders-1; order++ {
		buddy := off>>order ^ 1
		if !e.free[order].has(buddy) {
			break
		}
		e.free[order].remove(buddy)
		off &^= 1 << order
	}
	e.free[order].add(off >> order)
}

// bitTree is a set of small integers that finds its lowest member quickly. A bit of each level says
// whether a word of the level below has any bit set; the top level is one word.
type bitTree struct {
	levels [][]uint64
}

// grow makes room for integers below size.
func (t *bitTree) grow(size uint32) {
	for level, words := 0, uint64(size); words > 1 || level == 0; level++ {
		words = (words + 63) / 64
		if level == len(t.levels) {
			t.levels = append(t.levels, make([]uint64, words))
			// The level below was a single word until now.
			if level > 0 && words > 0 && t.levels[level-1][0] != 0 {
				t.levels[level][0] = 1
			}
			continue
		}
		if missing := int(words) - len(t.levels[level]); missing > 0 {
			t.levels[level] = append(t.levels[level], make([]uint64, missing)...)
		}
	}
}

func (t *bitTree) has(i uint32) bool {
	word := int(i / 64)
	return len(t.levels) > 0 && word < len(t.levels[0]) && t.levels[0][word]>>(i%64)&1 != 0
}

func (t *bitTree) empty() bool {
	top := len(t.levels) - 1
	return top < 0 || len(t.levels[top]) == 0 || t.levels[top][0] == 0
}

// add adds i, which must be below the size passed to grow.
func (t *bitTree) add(i uint32) {
	for _, words := range t.levels {
		word := &words[i/64]
		had := *word != 0
		*word |= 1 << (i % 64)
		if had {
			return
		}
		i /= 64
	}
}

func (t *bitTree) remove(i uint32) {
	for _, words := range t.levels {
		word := &words[i/64]
		if *word &^= 1 << (i % 64); *word != 0 {
			return
		}
		i /= 64
	}
}

// first returns the lowest member, or false if the set is empty.
func (t *bitTree) first() (uint32, bool) {
	if t.empty() {
		return 0, false
	}
	i := uint32(0)
	for level := len(t.levels) - 1; level >= 0; level-- {
		i = i*64 + uint32(bits.TrailingZeros64(t.levels[level][i]))
	}
	return i, true
}
