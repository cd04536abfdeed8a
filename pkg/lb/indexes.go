package lb

import "fmt"

// Indexes hands out indexes of a map whose rows programs may still be reading when they are freed. A freed index is in
// limbo until somebody takes it, waits for the readers that were there at that time, and releases it.
//
// It is not safe for concurrent use; the zero value has no capacity.
type Indexes struct {
	free   bitTree
	states []indexState
	limbo  []uint32
	inUse  uint32
}

// indexState is where an index is on its way round.
type indexState uint8

const (
	indexFree indexState = iota
	indexUsed
	indexLimbo
	indexTaken
)

// NewIndexes returns an allocator of the indexes below capacity.
func NewIndexes(capacity uint32) *Indexes {
	x := &Indexes{}
	x.Grow(capacity)
	return x
}

// Capacity returns the number of indexes that there are.
func (x *Indexes) Capacity() uint32 { return uint32(len(x.states)) }

// Used returns the number of indexes in use; those that were freed are not, wherever they are.
func (x *Indexes) Used() uint32 { return x.inUse }

// Limbo returns the number of freed indexes that nobody took yet.
func (x *Indexes) Limbo() int { return len(x.limbo) }

// Grow adds indexes at the end until there are as many as capacity. It never takes any away.
func (x *Indexes) Grow(capacity uint32) {
	old := x.Capacity()
	if capacity <= old {
		return
	}
	x.states = append(x.states, make([]indexState, capacity-old)...)
	x.free.grow(capacity)
	for i := old; i < capacity; i++ {
		x.free.add(i)
	}
}

// Alloc returns an index and puts it to use, the lowest that is free. It reports false if there is none.
func (x *Indexes) Alloc() (uint32, bool) {
	i, ok := x.free.first()
	if ok {
		x.use(i)
	}
	return i, ok
}

// Reserve puts an index to use that an earlier allocator handed out. It returns an error if the index is not free.
func (x *Indexes) Reserve(i uint32) error {
	switch {
	case i >= x.Capacity():
		return fmt.Errorf("reserve index %d: beyond the last of %d", i, x.Capacity())
	case x.states[i] != indexFree:
		return fmt.Errorf("reserve index %d: not free", i)
	}
	x.use(i)
	return nil
}

func (x *Indexes) use(i uint32) {
	x.free.remove(i)
	x.states[i] = indexUsed
	x.inUse++
}

// Free puts an index that is in use in limbo. It panics if the index is not in use: to go on would let two rows share it.
func (x *Indexes) Free(i uint32) {
	x.move(i, indexUsed, indexLimbo)
	x.inUse--
	x.limbo = append(x.limbo, i)
}

// TakeLimbo returns the indexes in limbo and empties it. Whoever takes them owes a Release once no program can hold them.
func (x *Indexes) TakeLimbo() []uint32 {
	taken := x.limbo
	for _, i := range taken {
		x.move(i, indexLimbo, indexTaken)
	}
	x.limbo = nil
	return taken
}

// Release makes indexes free that TakeLimbo returned. It panics if one of them is not among those.
func (x *Indexes) Release(ids []uint32) {
	for _, i := range ids {
		x.move(i, indexTaken, indexFree)
		x.free.add(i)
	}
}

func (x *Indexes) move(i uint32, from, to indexState) {
	if i >= x.Capacity() || x.states[i] != from {
		panic(fmt.Sprintf("lb: index %d is not in the state that it is to leave", i))
	}
	x.states[i] = to
}
