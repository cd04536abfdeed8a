package reconcile

import (
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
)

// backends shares one row among all services that use an address, port and protocol.
type backends struct {
	refs map[maps.Backend]ref
	ids  *lb.Indexes
}

type ref struct {
	index, count uint32
}

// acquire returns the row of a backend, counted once more. It reports false when the map is full.
func (b *backends) acquire(t *Tables, backend maps.Backend, wrote *uint64) (uint32, bool) {
	r, ok := b.refs[backend]
	if !ok {
		index, free := b.ids.Alloc()
		if !free {
			return 0, false
		}
		t.Backends[index] = backend // no slot leads here yet
		*wrote++
		r.index = index
	}
	r.count++
	b.refs[backend] = r
	return r.index, true
}

// release gives rows back; one that nobody uses may be written again after a grace period.
func (b *backends) release(t *Tables, indexes []uint32) {
	for _, index := range indexes {
		backend := t.Backends[index]
		r := b.refs[backend]
		r.count--
		if r.count > 0 {
			b.refs[backend] = r
			continue
		}
		delete(b.refs, backend)
		b.ids.Free(index)
	}
}

// adopt takes over a row that was found in the map, not counted yet. It reports false when the same backend stands in
// another row, which no sound table leads to.
func (b *backends) adopt(t *Tables, index uint32) bool {
	backend := t.Backends[index]
	if r, ok := b.refs[backend]; ok {
		return r.index == index
	}
	if b.ids.Reserve(index) != nil {
		return false
	}
	b.refs[backend] = ref{index: index}
	return true
}

// dropUnused frees the rows that were adopted on the way to finding that a table is damaged.
func (b *backends) dropUnused() {
	for backend, r := range b.refs {
		if r.count == 0 {
			delete(b.refs, backend)
			b.ids.Free(r.index)
		}
	}
}
