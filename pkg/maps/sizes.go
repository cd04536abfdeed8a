package maps

import (
	"fmt"
	"math/bits"
)

// Sizes are the numbers of rows of the maps that grow. Names has as many rows as Services. Flows is
// the size of ct, in which a flow has two rows.
type Sizes struct {
	Svcs, Services, Slots, Backends, Flows uint32
}

// MinSizes returns the sizes on the smallest node: enough that a small cluster never grows them.
func MinSizes() Sizes {
	return Sizes{Svcs: 4096, Services: 1024, Slots: 65536, Backends: 4096, Flows: 131072}
}

// MaxSizes returns the largest possible sizes. A slot has 24 bits each for the service and the
// backend; the other limits are where a node's memory ends.
func MaxSizes() Sizes {
	return Sizes{Svcs: 1 << 24, Services: MaxIndex + 1, Slots: 1 << 28, Backends: MaxIndex + 1, Flows: 1 << 27}
}

// AtLeast returns the larger of s and o, field by field.
func (s Sizes) AtLeast(o Sizes) Sizes {
	return Sizes{
		Svcs:     max(s.Svcs, o.Svcs),
		Services: max(s.Services, o.Services),
		Slots:    max(s.Slots, o.Slots),
		Backends: max(s.Backends, o.Backends),
		Flows:    max(s.Flows, o.Flows),
	}
}

// Round returns the sizes with which maps are created: at least MinSizes, and powers of two, so
// that not every small change makes a new map necessary. It fails if a size exceeds MaxSizes.
func (s Sizes) Round() (Sizes, error) {
	limit := MaxSizes()
	for _, size := range []struct {
		name       string
		want, most uint32
	}{
		{"svcs", s.Svcs, limit.Svcs},
		{"services", s.Services, limit.Services},
		{"slots", s.Slots, limit.Slots},
		{"backends", s.Backends, limit.Backends},
		{"ct", s.Flows, limit.Flows},
	} {
		if size.want > size.most {
			return Sizes{}, fmt.Errorf("size map %s: %d rows are too many: the limit is %d", size.name, size.want, size.most)
		}
	}
	s = s.AtLeast(MinSizes())
	return Sizes{
		Svcs:     roundUp(s.Svcs),
		Services: roundUp(s.Services),
		Slots:    roundUp(s.Slots),
		Backends: roundUp(s.Backends),
		Flows:    roundUp(s.Flows),
	}, nil
}

// roundUp returns the smallest power of two that is at least n, for n from 1 to 1<<31.
func roundUp(n uint32) uint32 {
	return 1 << bits.Len32(n-1)
}

// rows returns how many rows the map has by these sizes, 0 if they say nothing about it.
func (f field) rows(s Sizes) uint32 {
	if f.size == nil {
		return 0
	}
	return f.size(s)
}
