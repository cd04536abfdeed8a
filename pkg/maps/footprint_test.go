package maps

import (
	"runtime"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/test/rig"
)

// The footprint matches what the kernel reports for the maps it created.
func TestFootprint(t *testing.T) {
	rig.Root(t)
	sizes, err := Sizes{Svcs: 20000, Services: 5000, Slots: 200000, Backends: 10000, Flows: 300000}.Round()
	if err != nil {
		t.Fatal(err)
	}
	counts := countsAll(t)
	for _, want := range []Sizes{MinSizes(), sizes} {
		m, err := Create(want)
		if err != nil {
			t.Fatal(err)
		}
		var total uint64
		for _, f := range m.fields() {
			info, err := f.Map.Info()
			if err != nil {
				t.Fatal(err)
			}
			memory, _ := info.Memlock() // 0 for a trie without rows
			foretold := footprint(&ebpf.MapSpec{
				Type: info.Type, KeySize: info.KeySize, ValueSize: info.ValueSize, MaxEntries: info.MaxEntries, Flags: info.Flags,
			}, uint64(runtime.NumCPU()))
			total += foretold
			least, most := memory-memory/10, memory+memory/10+4*page
			switch {
			case counts:
			case info.Type == ebpf.Array:
				least = memory / 2 // the kernel includes the keys, which take no memory
			default:
				continue
			}
			if foretold+2*page < least || foretold > most {
				t.Errorf("%s: the footprint is %d bytes, the kernel reports %d", f.Name, foretold, memory)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if got, err := Footprint(want, Room{}, runtime.NumCPU()); err != nil || got != total {
			t.Errorf("%+v: the footprint is %d bytes, %v; the sum of its maps is %d", want, got, err, total)
		}
	}
}

// countsAll reports whether the kernel reports the memory a map really takes, which it does since
// 6.4. Before, it reports the keys and values of max_entries rows.
func countsAll(t *testing.T) bool {
	// Flag 1 is BPF_F_NO_PREALLOC.
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 65536, Flags: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	memory, _ := info.Memlock()
	return memory != 65536*16
}

// Larger sizes, more room and more CPUs all increase the footprint.
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
			t.Errorf("%s: %d bytes, %v; the minimum is %d", name, got, err, least)
		}
	}
}
