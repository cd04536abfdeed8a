package agent_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
	"fairlead.io/fairlead/test/sockmap/agent"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(agent.Sharing{Tests: m}, nil)) }

// TestPassedOn checks that a test finds the programs of the test before it, and every map as that test found it, whatever
// was written meanwhile; and that nobody finds pins that a test has changed.
func TestPassedOn(t *testing.T) {
	rig.MapIterators(t)
	var first, again string
	var made map[string][]string
	t.Run("writes", func(t *testing.T) {
		a := agent.New(t, sockmap.DefaultLimits())
		first, made = a.BPFFS, contents(t, a.BPFFS)
		a.Stop()
		if litter(t, a.BPFFS) == 0 {
			t.Fatal("there is no map to write to")
		}
	})
	t.Run("finds it clean", func(t *testing.T) {
		a := agent.New(t, sockmap.DefaultLimits())
		again = a.BPFFS
		for name, rows := range contents(t, a.BPFFS) {
			if was := made[name]; !slices.Equal(rows, was) {
				t.Errorf("%s has the rows %q, not %q", name, rows, was)
			}
		}
		tallies, err := a.Tallies()
		a.Must(err)
		if tallies.Watched != 0 || tallies.Redirected.Count != 0 {
			t.Errorf("%+v", tallies)
		}
		a.Stop()
		pins, err := filepath.Glob(filepath.Join(sockmap.Dir(a.BPFFS), "*", "halves"))
		if err != nil || len(pins) != 1 {
			t.Fatalf("%v, %v", pins, err)
		}
		a.Must(os.Remove(pins[0]))
	})
	if again != first {
		t.Errorf("the programs were loaded again")
	}
	t.Run("finds others", func(t *testing.T) {
		if a := agent.New(t, sockmap.DefaultLimits()); a.BPFFS == first {
			t.Error("what lacks a map was passed on")
		}
	})
}

// eachMap calls a function with every hash table and array that is pinned.
func eachMap(t *testing.T, bpffs string, f func(name string, m *ebpf.Map)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(sockmap.Dir(bpffs), "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			continue // a link
		}
		switch m.Type() {
		case ebpf.Hash, ebpf.LRUHash, ebpf.Array:
			f(filepath.Base(path), m)
		}
		m.Close()
	}
}

// contents returns the rows of every such map.
func contents(t *testing.T, bpffs string) map[string][]string {
	rows := map[string][]string{}
	eachMap(t, bpffs, func(name string, m *ebpf.Map) {
		each := m.Iterate()
		for key, value := []byte{}, []byte{}; each.Next(&key, &value); {
			rows[name] = append(rows[name], string(key)+string(value))
		}
		if err := each.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return rows
}

// litter writes a row into every such map, and counts, and returns into how many maps.
func litter(t *testing.T, bpffs string) (written int) {
	eachMap(t, bpffs, func(name string, m *ebpf.Map) {
		key := bytes.Repeat([]byte{1}, int(m.KeySize()))
		if m.Type() == ebpf.Array {
			key = make([]byte, m.KeySize())
		}
		if err := m.Put(key, bytes.Repeat([]byte{1}, int(m.ValueSize()))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		written++
	})
	paths, err := filepath.Glob(filepath.Join(sockmap.Dir(bpffs), "*", "sockmap_tallies"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("%v, %v", paths, err)
	}
	tallies, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tallies.Close()
	counts := make([][]byte, ebpf.MustPossibleCPU())
	for i := range counts {
		counts[i] = bytes.Repeat([]byte{1}, int(tallies.ValueSize()))
	}
	for n := range tallies.MaxEntries() {
		if err := tallies.Put(n, counts); err != nil {
			t.Fatal(err)
		}
	}
	return written + 1
}
