package lb

import "fmt"

// Indexes hands out indexes of a map whose rows the programs may still be reading when they are
// freed. A freed index is not handed out again until the caller takes it, waits for the readers that existed
// at that time, and releases it.
//
// It is not safe for concurrent use. The zero value has no capacity.
type Indexes struct {
	free   bitTree
	states []indexState
	freed  []uint32
	inUse  uint32
}

// indexState is the state of an index in its life cycle.
type indexState uint8

const (
	indexFree indexState = iota
	indexUsed
	indexFreed // programs may still read its row
	indexTaken // likewise; whoever took it waits for them
)

// NewIndexes returns an allocator of the indexes below capacity.
func NewIndexes(capacity uint32) *Indexes {
	x := &Indexes{}
	x.Grow(capacity)
	return x
}

// Capacity returns the total number of indexes.
func (x *Indexes) Capacity() uint32 { return uint32(len(x.states)) }

// Used returns the number of indexes in use. Freed indexes do not count, whether or not they were
// released.
func (x *Indexes) Used() uint32 { return x.inUse }

// Freed returns the number of freed indexes that were not taken yet.
func (x *Indexes) Freed() int { return len(x.freed) }

// Grow adds indexes at the end until there are capacity of them. It never removes any.
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

// Alloc marks the lowest free index as used and returns it. It returns false if there is none.
func (x *Indexes) Alloc() (uint32, bool) {
	i, ok := x.free.first()
	if ok {
		x.use(i)
	}
	return i, ok
}

// Reserve marks an index as used that an earlier allocator handed out. It returns an error if the
// index is not free.
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

// Free frees an index, which programs may go on reading. It panics if the index is not in use: carrying on would let two rows
// share it.
func (x *Indexes) Free(i uint32) {
	x.move(i, indexUsed, indexFreed)
	x.inUse--
	x.freed = append(x.freed, i)
}

// TakeFreed returns the indexes that were freed since the last call. The caller must Release them once no
// program can hold them.
func (x *Indexes) TakeFreed() []uint32 {
	taken := x.freed
	for _, i := range taken {
		x.move(i, indexFreed, indexTaken)
	}
	x.freed = nil
	return taken
}

// Release frees indexes that TakeFreed returned. It panics if one of them is not among those.
func (x *Indexes) Release(ids []uint32) {
	for _, i := range ids {
		x.move(i, indexTaken, indexFree)
		x.free.add(i)
	}
}

func (x *Indexes) move(i uint32, from, to indexState) {
	if i >= x.Capacity() || x.states[i] != from {
		panic(fmt.Sprintf("lb: index %d is not in the expected state", i))
	}
	x.states[i] = to
}
