package maps

import (
	"runtime"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// What is foretold is what the kernel says of maps that were made.
func TestFootprint(t *testing.T) {
	rig.Root(t)
	sizes, err := Sizes{Svcs: 20000, Services: 5000, Slots: 200000, Backends: 10000, Flows: 300000}.Round()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Sizes{MinSizes(), sizes} {
		m, err := Create(want)
		if err != nil {
			t.Fatal(err)
		}
		var kernel uint64
		exact := false
		for _, f := range m.fields() {
			info, err := f.Map.Info()
			if err != nil {
				t.Fatal(err)
			}
			memory, _ := info.Memlock() // none of a trie without rows
			kernel += memory
			if f.Name == "svcs" {
				// Kernels before 6.4 count keys and values alone.
				exact = memory > uint64(want.Svcs*(info.KeySize+info.ValueSize+hashRow))
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		foretold, err := Footprint(want, Room{}, runtime.NumCPU())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("the kernel says %d KiB (all of it: %v), foretold were %d KiB", kernel>>10, exact, foretold>>10)
		if ratio := float64(foretold) / float64(kernel); ratio < 0.9 || ratio > 1.1 && exact {
			t.Errorf("%+v: foretold are %d bytes, the kernel says %d", want, foretold, kernel)
		}
	}
}

// What is asked for costs: each size, each room and each processor more.
func TestFootprintGrows(t *testing.T) {
	least, err := Footprint(MinSizes(), Room{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string]struct {
		sizes Sizes
		room  Room
		cpus  int
	}{
		"svcs":      {Sizes{Svcs: 1 << 20}.AtLeast(MinSizes()), Room{}, 1},
		"services":  {Sizes{Services: 1 << 20}.AtLeast(MinSizes()), Room{}, 1},
		"slots":     {Sizes{Slots: 1 << 24}.AtLeast(MinSizes()), Room{}, 1},
		"backends":  {Sizes{Backends: 1 << 20}.AtLeast(MinSizes()), Room{}, 1},
		"flows":     {Sizes{Flows: 1 << 20}.AtLeast(MinSizes()), Room{}, 1},
		"half open": {MinSizes(), Room{HalfOpen: 1 << 20}, 1},
		"clients":   {MinSizes(), Room{Clients: 1 << 20}, 1},
		"datagrams": {MinSizes(), Room{Datagrams: 1 << 20}, 1},
		"cpus":      {MinSizes(), Room{}, 128},
	} {
		if got, err := Footprint(more.sizes, more.room, more.cpus); err != nil || got < least+1<<18 {
			t.Errorf("%s: %d bytes, %v; the least are %d", name, got, err, least)
		}
	}
}
