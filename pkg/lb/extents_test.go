package lb

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// extentMachine is an allocator together with a model of it. The model only records which slots are
// in use and finds what fits by searching. Rapid calls the methods in random order.
type extentMachine struct {
	e       *Extents
	slots   []bool
	extents map[uint32]uint32 // in use: offset to the length asked for
}

func (m *extentMachine) isFree(off, size uint32) bool {
	if off%size != 0 || uint64(off)+uint64(size) > uint64(len(m.slots)) {
		return false
	}
	return !slices.Contains(m.slots[off:off+size], true)
}

func (m *extentMachine) fits(n uint32) bool {
	size := extentRounded(n)
	for off := uint32(0); uint64(off) < uint64(len(m.slots)); off += size {
		if m.isFree(off, size) {
			return n > 0 && size <= 1<<16
		}
	}
	return false
}

func (m *extentMachine) set(off, n uint32, used bool) {
	for i := range extentRounded(n) {
		m.slots[off+i] = used
	}
	if used {
		m.extents[off] = n
	} else {
		delete(m.extents, off)
	}
}

func extentRounded(n uint32) uint32 {
	size := uint32(1)
	for size < n {
		size *= 2
	}
	return size
}

func extentLength() *rapid.Generator[uint32] {
	return rapid.OneOf(rapid.Uint32Range(0, 5), rapid.Uint32Range(0, 200))
}

func (m *extentMachine) Alloc(t *rapid.T) {
	n := extentLength().Draw(t, "n")
	off, ok := m.e.Alloc(n)
	if ok != m.fits(n) {
		t.Fatalf("alloc of %d: %v, want %v", n, ok, !ok)
	}
	if !ok {
		return
	}
	if !m.isFree(off, extentRounded(n)) {
		t.Fatalf("alloc of %d: %d is not free, or not aligned", n, off)
	}
	m.set(off, n, true)
}

func (m *extentMachine) Free(t *rapid.T) {
	if len(m.extents) == 0 {
		t.Skip("nothing to free")
	}
	off := rapid.SampledFrom(slices.Sorted(maps.Keys(m.extents))).Draw(t, "off")
	m.e.Free(off, m.extents[off])
	m.set(off, m.extents[off], false)
}

func (m *extentMachine) FreeAnother(t *rapid.T) {
	off, n := rapid.Uint32Range(0, 400).Draw(t, "off"), extentLength().Draw(t, "n")
	if known, ok := m.extents[off]; n > 0 && ok && extentRounded(known) == extentRounded(n) {
		t.Skip("is an extent")
	}
	if !extentPanics(func() { m.e.Free(off, n) }) {
		t.Fatalf("free of %d+%d, which is no extent, did not panic", off, n)
	}
}

func (m *extentMachine) Reserve(t *rapid.T) {
	off, n := rapid.Uint32Range(0, 400).Draw(t, "off"), extentLength().Draw(t, "n")
	err := m.e.Reserve(off, n)
	if want := n > 0 && m.isFree(off, extentRounded(n)); (err == nil) != want {
		t.Fatalf("reserve of %d+%d: %v, want success %v", off, n, err, want)
	}
	if err == nil {
		m.set(off, n, true)
	}
}

func (m *extentMachine) Grow(t *rapid.T) {
	m.grow(max(uint32(len(m.slots)), rapid.Uint32Range(0, 600).Draw(t, "to")))
}

func (m *extentMachine) GrowByNeed(t *rapid.T) {
	n := rapid.Uint32Range(1, 100).Draw(t, "n")
	fitted, need := m.e.Fits(n), m.e.Need(n)
	if fitted && need != m.e.Capacity() {
		t.Fatalf("%d slots need a capacity of %d although they fit in %d", n, need, m.e.Capacity())
	}
	m.grow(need)
	if !m.e.Fits(n) {
		t.Fatalf("%d slots do not fit after growing to the capacity they need", n)
	}
}

func (m *extentMachine) grow(capacity uint32) {
	m.e.Grow(capacity)
	m.slots = append(m.slots, make([]bool, capacity-uint32(len(m.slots)))...)
	m.e.Grow(capacity / 2) // does not shrink
}

func (m *extentMachine) Check(t *rapid.T) {
	used := uint32(0)
	for off := range m.slots {
		if m.slots[off] {
			used++
		}
	}
	if m.e.Used() != used || int(m.e.Capacity()) != len(m.slots) {
		t.Fatalf("%d of %d used, want %d of %d", m.e.Used(), m.e.Capacity(), used, len(m.slots))
	}
	for n := uint32(0); n <= 512; n += max(1, n/2) {
		if m.e.Fits(n) != m.fits(n) {
			t.Fatalf("%d fit: %v, want %v", n, m.e.Fits(n), !m.e.Fits(n))
		}
	}
}

func TestExtents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Uint32Range(0, 300).Draw(t, "capacity")
		m := &extentMachine{NewExtents(capacity), make([]bool, capacity), map[uint32]uint32{}}
		t.Repeat(rapid.StateMachineActions(m))
		for off, n := range m.extents {
			m.e.Free(off, n)
			m.set(off, n, false)
		}
		m.Check(t)
	})
}

// extentPanics reports whether f panics.
func extentPanics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// TestExtentsOfEverySize covers both extremes: the longest extents, and a capacity that uses every
// level.
func TestExtentsOfEverySize(t *testing.T) {
	const capacity = 5<<16 + 12345
	e := NewExtents(capacity)
	for i := range uint32(5) {
		if off, ok := e.Alloc(MaxSlots); !ok || off != i<<16 {
			t.Fatalf("extent %d: %d, %v", i, off, ok)
		}
	}
	if _, ok := e.Alloc(MaxSlots); ok {
		t.Fatal("an extent was allocated beyond the capacity")
	}
	if _, ok := e.Alloc(1<<16 + 1); ok || e.Fits(1<<16+1) || e.Need(1<<16+1) != capacity {
		t.Fatal("an extent longer than the longest table was allocated")
	}
	seen := map[uint32]bool{}
	for range capacity - 5<<16 {
		off, ok := e.Alloc(1)
		if !ok || off < 5<<16 || off >= capacity || seen[off] {
			t.Fatalf("slot %d, %v, after %d of them", off, ok, len(seen))
		}
		seen[off] = true
	}
	if e.Used() != capacity || e.Fits(1) {
		t.Fatalf("%d used of %d", e.Used(), capacity)
	}
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(capacity - 5<<16) {
		e.Free(5<<16+uint32(i), 1)
	}
	// All slots have merged again: 12345 = 8192 + 4096 + 32 + 16 + 8 + 1.
	for _, n := range []uint32{8192, 4096, 32, 16, 8, 1} {
		if _, ok := e.Alloc(n); !ok {
			t.Fatalf("%d do not fit", n)
		}
	}
	if e.Fits(1) {
		t.Fatal("a slot is left after all were allocated")
	}
}

func TestExtentsReserveErrors(t *testing.T) {
	e := NewExtents(100)
	if err := e.Reserve(16, 9); err != nil { // 16 slots
		t.Fatal(err)
	}
	for _, tt := range []struct {
		off, n uint32
		says   string
	}{
		{0, 0, "reserve extent 0+0: no such length"},
		{0, 1<<16 + 1, "no such length"},
		{2, 3, "reserve extent 2+3: not at a multiple of 4"},
		{96, 8, "beyond the last of 100 slots"},
		{1 << 31, 1, "beyond the last"},
		{0xffff0000, 1 << 16, "beyond the last"},
		{16, 16, "reserve extent 16+16: overlaps"},
		{31, 1, "overlaps"},
		{0, 32, "overlaps"},
		{0, 64, "overlaps"},
	} {
		err := e.Reserve(tt.off, tt.n)
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%d+%d: %v, want %q", tt.off, tt.n, err, tt.says)
		}
	}
	if e.Used() != 16 {
		t.Errorf("%d slots used after errors, want 16", e.Used())
	}
}

// TestExtentsMemory checks the promise of half a byte per slot, whatever the extents are.
func TestExtentsMemory(t *testing.T) {
	e := NewExtents(0)
	for capacity := uint32(1 << 10); capacity <= 1<<20; capacity *= 2 {
		e.Grow(capacity)
	}
	for range e.Capacity() {
		if _, ok := e.Alloc(1); !ok {
			t.Fatal("does not fit")
		}
	}
	words := 0
	for order := range e.free {
		for _, level := range e.free[order].levels {
			words += cap(level)
		}
		words += cap(e.used[order])
	}
	if bytes := float64(8*words) / float64(e.Capacity()); bytes > 0.75 {
		t.Errorf("%.2f bytes per slot", bytes)
	}
}

// BenchmarkExtents frees and allocates at random in a map that is nearly full of extents of up to n
// slots.
func BenchmarkExtents(b *testing.B) {
	for _, n := range []uint32{1, 10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			type extent struct{ off, n uint32 }
			e := NewExtents(1 << 20)
			random := rand.New(rand.NewPCG(1, 1))
			var extents []extent
			for e.Used() < e.Capacity()/10*9 {
				length := 1 + random.Uint32N(n)
				off, ok := e.Alloc(length)
				if !ok {
					break
				}
				extents = append(extents, extent{off, length})
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				one, other := i*7919%len(extents), i*104729%len(extents)
				x, y := &extents[one], &extents[other]
				e.Free(x.off, x.n)
				if one != other {
					e.Free(y.off, y.n)
				}
				x.off, _ = e.Alloc(x.n)
				if one != other {
					y.off, _ = e.Alloc(y.n)
				}
			}
		})
	}
}
