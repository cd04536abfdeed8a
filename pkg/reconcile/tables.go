// Package reconcile makes the maps contain what the objects want. It is the only writer of the
// load-balancing maps: it compiles every object that became dirty, compares the result with what it
// wrote before, and writes the difference in an order that is safe for concurrent readers. A lost,
// duplicated or reordered event cannot leave a wrong row behind, since the latest objects alone
// decide.
package reconcile

import (
	"fmt"
	stdmaps "maps"
	"sync"

	"fairlead.io/fairlead/pkg/maps"
)

// Frontends is the hash map from frontends to services. Its rows are written by system calls, so
// its operations can fail, as those of Ranges can. The other tables are memory.
type Frontends interface {
	// Insert adds rows whose keys are absent.
	Insert(keys []maps.SvcKey, rows []maps.Svc) error
	// Update replaces the row of a key that is present.
	Update(key maps.SvcKey, row maps.Svc) error
	// Delete removes rows. An absent key is no error.
	Delete(keys []maps.SvcKey) error
	// Lookup returns the row of a key and whether it exists.
	Lookup(key maps.SvcKey) (maps.Svc, bool, error)
	// Each calls f for every row, in any order.
	Each(f func(maps.SvcKey, maps.Svc)) error
	// Capacity returns the maximum number of rows.
	Capacity() uint32
}

// Ranges is the trie of client addresses that services allow.
type Ranges interface {
	// Insert adds ranges. A range that exists already stays.
	Insert(ranges []maps.Range) error
	// Delete removes ranges. An absent range is no error.
	Delete(ranges []maps.Range) error
	// Has reports whether there is a row for exactly that range.
	Has(maps.Range) (bool, error)
	// Each calls f for every range, in any order.
	Each(f func(maps.Range)) error
}

// Tables are the maps that a Reconciler writes. The slices are the memory of the maps: a store is
// visible to the programs at once.
type Tables struct {
	Frontends Frontends
	Ranges    Ranges
	Services  []maps.Service
	Slots     []maps.Slot
	Backends  []maps.Backend
	Names     []maps.NameText
}

// Sizes returns the capacity of each map.
func (t *Tables) Sizes() maps.Sizes {
	return maps.Sizes{
		Svcs:     t.Frontends.Capacity(),
		Services: uint32(len(t.Services)),
		Slots:    uint32(len(t.Slots)),
		Backends: uint32(len(t.Backends)),
	}
}

// memory is a Frontends in process memory. Like the real map, it may be listed while it is written.
type memory struct {
	mu       sync.Mutex
	rows     map[maps.SvcKey]maps.Svc
	capacity uint32
}

// NewMemory returns Tables in process memory that behave like the real ones. They serve tests, and
// show what a set of manifests compiles to.
func NewMemory(sizes maps.Sizes) *Tables {
	return &Tables{
		Frontends: &memory{rows: map[maps.SvcKey]maps.Svc{}, capacity: sizes.Svcs},
		Ranges:    &memoryRanges{rows: map[maps.Range]struct{}{}},
		Services:  make([]maps.Service, sizes.Services),
		Slots:     make([]maps.Slot, sizes.Slots),
		Backends:  make([]maps.Backend, sizes.Backends),
		Names:     make([]maps.NameText, sizes.Services),
	}
}

// GrowMemory returns a larger copy of Tables made by NewMemory.
func GrowMemory(t *Tables, sizes maps.Sizes) *Tables {
	grown := NewMemory(sizes)
	grown.Ranges = t.Ranges
	_ = t.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		grown.Frontends.(*memory).rows[key] = row
	})
	copy(grown.Services, t.Services)
	copy(grown.Slots, t.Slots)
	copy(grown.Backends, t.Backends)
	copy(grown.Names, t.Names)
	return grown
}

func (m *memory) Insert(keys []maps.SvcKey, rows []maps.Svc) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, key := range keys {
		if _, ok := m.rows[key]; ok {
			return fmt.Errorf("insert %v: key exists", maps.AddrPort(key))
		}
		if len(m.rows) >= int(m.capacity) {
			return fmt.Errorf("insert %v: map is full", maps.AddrPort(key))
		}
		m.rows[key] = rows[i]
	}
	return nil
}

func (m *memory) Update(key maps.SvcKey, row maps.Svc) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.rows[key]; !ok {
		return fmt.Errorf("update %v: no such key", maps.AddrPort(key))
	}
	m.rows[key] = row
	return nil
}

func (m *memory) Delete(keys []maps.SvcKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.rows, key)
	}
	return nil
}

func (m *memory) Lookup(key maps.SvcKey) (maps.Svc, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, ok := m.rows[key]
	return row, ok, nil
}

func (m *memory) Each(f func(maps.SvcKey, maps.Svc)) error {
	m.mu.Lock()
	rows := stdmaps.Clone(m.rows)
	m.mu.Unlock()
	for key, row := range rows {
		f(key, row)
	}
	return nil
}

// memoryRanges is a Ranges in process memory.
type memoryRanges struct {
	mu   sync.Mutex
	rows map[maps.Range]struct{}
}

func (m *memoryRanges) Insert(ranges []maps.Range) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range ranges {
		m.rows[r] = struct{}{}
	}
	return nil
}

func (m *memoryRanges) Delete(ranges []maps.Range) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range ranges {
		delete(m.rows, r)
	}
	return nil
}

func (m *memoryRanges) Has(r maps.Range) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.rows[r]
	return ok, nil
}

func (m *memoryRanges) Each(f func(maps.Range)) error {
	m.mu.Lock()
	rows := stdmaps.Clone(m.rows)
	m.mu.Unlock()
	for r := range rows {
		f(r)
	}
	return nil
}

func (m *memory) Capacity() uint32 { return m.capacity }
