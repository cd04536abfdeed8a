package lb

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// indexMachine is an allocator together with a model of it that knows the state of every index.
// Rapid calls the methods in random order.
type indexMachine struct {
	x     *Indexes
	where []indexState
	taken [][]uint32
}

func (m *indexMachine) in(state indexState) (list []uint32) {
	for i, s := range m.where {
		if s == state {
			list = append(list, uint32(i))
		}
	}
	return list
}

// draw draws an index, possibly beyond the last, that is not in the given state.
func (m *indexMachine) draw(t *rapid.T, not indexState) uint32 {
	i := rapid.Uint32Range(0, 220).Draw(t, "i")
	if int(i) < len(m.where) && m.where[i] == not {
		t.Skip("the index is in that state")
	}
	return i
}

func (m *indexMachine) Alloc(t *rapid.T) {
	i, ok := m.x.Alloc()
	if free := m.in(indexFree); ok != (len(free) > 0) || ok && !slices.Contains(free, i) {
		t.Fatalf("alloc: %d, %v; free are %v", i, ok, free)
	}
	if ok {
		m.where[i] = indexUsed
	}
}

func (m *indexMachine) Free(t *rapid.T) {
	used := m.in(indexUsed)
	if len(used) == 0 {
		t.Skip("nothing to free")
	}
	i := rapid.SampledFrom(used).Draw(t, "i")
	m.x.Free(i)
	m.where[i] = indexFreed
}

func (m *indexMachine) FreeAnother(t *rapid.T) {
	i := m.draw(t, indexUsed)
	if !extentPanics(func() { m.x.Free(i) }) {
		t.Fatalf("free of %d, which is not in use, did not panic", i)
	}
}

func (m *indexMachine) TakeFreed(t *rapid.T) {
	ids := m.x.TakeFreed()
	if want := m.in(indexFreed); !slices.Equal(slices.Sorted(slices.Values(ids)), want) {
		t.Fatalf("TakeLimbo returned %v, want %v", ids, want)
	}
	for _, i := range ids {
		m.where[i] = indexTaken
	}
	m.taken = append(m.taken, ids)
}

func (m *indexMachine) Release(t *rapid.T) {
	if len(m.taken) == 0 {
		t.Skip("nothing taken")
	}
	at := rapid.IntRange(0, len(m.taken)-1).Draw(t, "which")
	m.x.Release(m.taken[at])
	for _, i := range m.taken[at] {
		m.where[i] = indexFree
	}
	m.taken = slices.Delete(m.taken, at, at+1)
}

func (m *indexMachine) ReleaseAnother(t *rapid.T) {
	i := m.draw(t, indexTaken)
	if !extentPanics(func() { m.x.Release([]uint32{i}) }) {
		t.Fatalf("release of %d, which was not taken, did not panic", i)
	}
}

func (m *indexMachine) Reserve(t *rapid.T) {
	i := rapid.Uint32Range(0, 220).Draw(t, "i")
	want := int(i) < len(m.where) && m.where[i] == indexFree
	if err := m.x.Reserve(i); (err == nil) != want {
		t.Fatalf("reserve of %d: %v, want success %v", i, err, want)
	}
	if want {
		m.where[i] = indexUsed
	}
}

func (m *indexMachine) Grow(t *rapid.T) {
	to := rapid.Uint32Range(0, 200).Draw(t, "to")
	m.x.Grow(to)
	for len(m.where) < int(to) {
		m.where = append(m.where, indexFree)
	}
}

func (m *indexMachine) Check(t *rapid.T) {
	used, freed := len(m.in(indexUsed)), len(m.in(indexFreed))
	if int(m.x.Capacity()) != len(m.where) || int(m.x.Used()) != used || m.x.Freed() != freed {
		t.Fatalf("capacity %d, used %d, freed %d; want %d, %d, %d",
			m.x.Capacity(), m.x.Used(), m.x.Freed(), len(m.where), used, freed)
	}
}

func TestIndexes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Uint32Range(0, 20).Draw(t, "capacity")
		m := &indexMachine{x: NewIndexes(capacity), where: make([]indexState, capacity)}
		t.Repeat(rapid.StateMachineActions(m))
	})
}

func TestIndexesReserveErrors(t *testing.T) {
	x := NewIndexes(4)
	if err := x.Reserve(2); err != nil {
		t.Fatal(err)
	}
	for i, says := range map[uint32]string{2: "reserve index 2: not free", 4: "reserve index 4: beyond the last of 4"} {
		if err := x.Reserve(i); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("reserve of %d: %v, want %q", i, err, says)
		}
	}
}

// TestIndexesMany crosses the levels of the bit tree while growing.
func TestIndexesMany(t *testing.T) {
	x := NewIndexes(1)
	for want := range uint32(300_000) {
		i, ok := x.Alloc()
		if !ok {
			x.Grow(x.Capacity() * 2)
			i, ok = x.Alloc()
		}
		if !ok || i != want {
			t.Fatalf("%d, %v; want %d", i, ok, want)
		}
	}
	for i := range uint32(300_000) {
		x.Free(i)
	}
	x.Release(x.TakeFreed())
	if x.Used() != 0 {
		t.Fatalf("%d used after all were freed", x.Used())
	}
	for want := range x.Capacity() {
		if i, ok := x.Alloc(); !ok || i != want {
			t.Fatalf("%d, %v; want %d", i, ok, want)
		}
	}
	if i, ok := x.Alloc(); ok {
		t.Fatalf("%d of none", i)
	}
}

// TestIndexesGrow grows by one and by two levels while lower indexes are free.
func TestIndexesGrow(t *testing.T) {
	for _, capacity := range []uint32{64, 65, 64 * 64, 64*64 + 1, 64 * 64 * 64, 64*64*64 + 1} {
		x := NewIndexes(10)
		x.Grow(capacity)
		for want := range capacity {
			if i, ok := x.Alloc(); !ok || i != want {
				t.Fatalf("grown to %d: %d, %v; want %d", capacity, i, ok, want)
			}
		}
	}
}

func BenchmarkIndexes(b *testing.B) {
	x := NewIndexes(1 << 20)
	for range 1 << 19 {
		x.Alloc()
	}
	b.ReportAllocs()
	for b.Loop() {
		i, _ := x.Alloc()
		x.Free(i)
		x.Release(x.TakeFreed())
	}
}
