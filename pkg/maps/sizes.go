package maps

import (
	"fmt"
	"math/bits"
)

// Sizes are the numbers of rows of the maps that grow. Names has as many rows as Services. Flows is that of ct, in which
// a flow has two rows.
type Sizes struct {
	Svcs, Services, Slots, Backends, Flows uint32
}

// MinSizes is what the smallest node gets: room enough that a small cluster never grows.
func MinSizes() Sizes {
	return Sizes{Svcs: 4096, Services: 1024, Slots: 65536, Backends: 4096, Flows: 131072}
}

// MaxSizes is the most that can be had. A slot has 24 bits for a service and as many for a backend; the others end where
// a node has no memory for more.
func MaxSizes() Sizes {
	return Sizes{Svcs: 1 << 24, Services: MaxIndex + 1, Slots: 1 << 28, Backends: MaxIndex + 1, Flows: 1 << 27}
}

// AtLeast returns the larger of s and o, size by size.
func (s Sizes) AtLeast(o Sizes) Sizes {
	return Sizes{
		Svcs:     max(s.Svcs, o.Svcs),
		Services: max(s.Services, o.Services),
		Slots:    max(s.Slots, o.Slots),
		Backends: max(s.Backends, o.Backends),
		Flows:    max(s.Flows, o.Flows),
	}
}

// Round returns the sizes that maps are made with: not below MinSizes, and powers of two, so that small changes of need
// do not each make a new map. It fails when more is wanted than MaxSizes has.
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
			return Sizes{}, fmt.Errorf("size map %s: %d rows are wanted, the most is %d", size.name, size.want, size.most)
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

// roundUp returns the least power of two that is not below n, for n from 1 to 1<<31.
func roundUp(n uint32) uint32 {
	return 1 << bits.Len32(n-1)
}
