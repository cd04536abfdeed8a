package lb

import (
	"errors"
	"fairlead.io/fairlead/pkg/maps"
	"sort"
)

type Algorithm uint8

func (a Algorithm) String() string { return "random" }
func ParseAlgorithm(s string) (Algorithm, error) {
	if s == "random" || s == "" {
		return 0, nil
	}
	if s == "maglev" {
		return 3, nil
	}
	if s == "round-robin" {
		return 1, nil
	}
	return 0, errors.New("unknown")
}

const MaxSlots = 65535

type Weighted struct {
	Backend maps.Backend
	Weight  uint16
}

func Table(dst []uint32, a Algorithm, external bool, b []Weighted) []uint32 {
	for i := range b {
		dst = append(dst, uint32(i))
	}
	return dst
}

type Indexes struct {
	used        map[uint32]bool
	limbo, free []uint32
	next, cap   uint32
}

func NewIndexes(c uint32) *Indexes { return &Indexes{used: map[uint32]bool{}, cap: c} }
func (x *Indexes) Alloc() (uint32, bool) {
	if n := len(x.free); n > 0 {
		i := x.free[n-1]
		x.free = x.free[:n-1]
		x.used[i] = true
		return i, true
	}
	for x.next < x.cap && x.used[x.next] {
		x.next++
	}
	if x.next >= x.cap {
		return 0, false
	}
	i := x.next
	x.next++
	x.used[i] = true
	return i, true
}
func (x *Indexes) Free(i uint32)       { x.limbo = append(x.limbo, i) }
func (x *Indexes) Limbo() int          { return len(x.limbo) }
func (x *Indexes) TakeLimbo() []uint32 { l := x.limbo; x.limbo = nil; return l }
func (x *Indexes) Release(l []uint32) {
	for _, i := range l {
		delete(x.used, i)
		if i < x.next {
			x.free = append(x.free, i)
		}
	}
}
func (x *Indexes) Reserve(i uint32) error {
	if i >= x.cap || x.used[i] {
		return errors.New("used")
	}
	x.used[i] = true
	return nil
}
func (x *Indexes) Grow(c uint32) { x.cap = c }
func (x *Indexes) Used() int     { return len(x.used) }

type Extents struct {
	m   map[uint32]uint32
	cap uint32
}

func NewExtents(c uint32) *Extents { return &Extents{map[uint32]uint32{}, c} }
func (e *Extents) Alloc(n uint32) (uint32, bool) {
	var s []int
	for o := range e.m {
		s = append(s, int(o))
	}
	sort.Ints(s)
	at := uint32(0)
	for _, o := range s {
		if uint32(o)-at >= n {
			break
		}
		at = uint32(o) + e.m[uint32(o)]
	}
	if at+n > e.cap {
		return 0, false
	}
	e.m[at] = n
	return at, true
}
func (e *Extents) Free(o, n uint32) { delete(e.m, o) }
func (e *Extents) Reserve(o, n uint32) error {
	for a, l := range e.m {
		if o < a+l && a < o+n {
			return errors.New("overlap")
		}
	}
	e.m[o] = n
	return nil
}
func (e *Extents) Grow(c uint32) { e.cap = c }
