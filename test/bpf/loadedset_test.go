package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// loadedSet is what a bareNode is built on: maps, and programs loaded over them. Verifying the programs
// takes most of a story's time, so a story passes its loadedSet on to the next one with the same
// configuration and sizes, with every map as it was created.
type loadedSet struct {
	config bpf.MapsPacketConfig
	sizes  maps.Sizes
	maps   *maps.Maps
	// All maps as they were created: first those above, then those of the programs alone.
	made     []maps.Info
	loaded   map[string]*ebpf.Collection // by hook
	attached bool                        // to devices, which the story has removed by now
	spoiled  bool                        // by a story that replaced maps
}

// loadedSets holds unused sets, the most recently used last. Each takes tens of megabytes.
type loadedSets struct {
	mu   sync.Mutex
	idle []*loadedSet
}

const mostIdle = 8

var left loadedSets

// take returns a set, and takes it back once the test has cleaned up everything it does after
// that.
func (g *loadedSets) take(t *testing.T, config bpf.MapsPacketConfig, sizes maps.Sizes) *loadedSet {
	t.Helper()
	taken := g.find(config, sizes)
	if taken == nil {
		m, err := maps.Create(sizes)
		if err != nil {
			t.Fatal(err)
		}
		if err := shortenRuns(m); err != nil {
			t.Fatal(err)
		}
		taken = &loadedSet{config: config, sizes: sizes, maps: m, made: m.All(), loaded: map[string]*ebpf.Collection{}}
	} else if had, err := taken.clean(); err != nil || len(had) > 0 {
		t.Fatalf("take a set from another story, whose programs still write: %v, %v", had, err)
	}
	t.Cleanup(func() { g.leave(t, taken) })
	return taken
}

// shortenRuns gives m a shorter array of the runs of policies than agents have. Cleaning reads all of it, twice a story, which
// took most of the time of all stories.
func shortenRuns(m *maps.Maps) error {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return err
	}
	spec := specs.Maps["policy_runs"]
	spec.MaxEntries = 4096
	short, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	err = m.PolicyRuns.Close()
	m.PolicyRuns = short
	return err
}

func (g *loadedSets) find(config bpf.MapsPacketConfig, sizes maps.Sizes) *loadedSet {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, idle := range slices.Backward(g.idle) {
		if idle.config == config && idle.sizes == sizes {
			g.idle = slices.Delete(g.idle, i, i+1)
			return idle
		}
	}
	return nil
}

// leave keeps a set for another story, unless the test has failed: then anything else may be
// wrong with it.
func (g *loadedSets) leave(t *testing.T, was *loadedSet) {
	t.Helper()
	if was.spoiled || t.Failed() {
		was.close(t)
		return
	}
	if err := was.tidy(); err != nil {
		t.Errorf("leave the set as it was taken: %v", err)
		was.close(t)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle = append(g.idle, was); len(g.idle) > mostIdle {
		g.idle[0].close(t)
		g.idle = slices.Delete(g.idle, 0, 1)
	}
}

// tidy waits for packets that are still in an attached program, and cleans the maps.
func (g *loadedSet) tidy() error {
	if g.attached {
		barrier, err := maps.NewBarrier()
		if err != nil {
			return err
		}
		if err := errors.Join(barrier.Wait(), barrier.Close()); err != nil {
			return err
		}
		g.attached = false
	}
	_, err := g.clean()
	return err
}

// clean restores every map to its state at creation, and returns what was in which map.
func (g *loadedSet) clean() (had []string, err error) {
	for i, info := range g.maps.All() {
		if info.Map != g.made[i].Map {
			return nil, fmt.Errorf("map %s was replaced", info.Name)
		}
	}
	for _, info := range g.made {
		rows, err := clean(info.Map)
		if err != nil {
			return nil, fmt.Errorf("clean map %s: %w", info.Name, err)
		}
		if rows > 0 {
			had = append(had, fmt.Sprintf("%s: %d rows", info.Name, rows))
		}
	}
	return had, nil
}

// programs returns the programs of a hook over the maps. All their state must be in the maps, or
// cleaning would not remove it.
func (g *loadedSet) programs(t *testing.T, h hook) map[string]*ebpf.Program {
	t.Helper()
	if g.loaded[h.name] == nil {
		loaded := load(t, h, g.config, g.maps)
		g.loaded[h.name] = loaded
		for name, own := range loaded.Maps {
			shared := slices.ContainsFunc(g.maps.All(), func(info maps.Info) bool { return info.Name == name })
			switch {
			case strings.HasPrefix(name, ".data"):
				t.Fatalf("the programs of %s have variables, which cannot be cleaned: %s", h.name, name)
			case !shared && name != ".rodata":
				g.made = append(g.made, maps.Info{Name: name, Map: own})
			}
		}
	}
	return g.loaded[h.name].Programs
}

func (g *loadedSet) close(t *testing.T) {
	t.Helper()
	for _, loaded := range g.loaded {
		loaded.Close()
	}
	if err := g.maps.Close(); err != nil {
		t.Error(err)
	}
}

// Nothing that a story wrote is left for the next one, and anything written between two stories
// fails the second.
func TestLoadedSetIsClean(t *testing.T) {
	rig.Root(t)
	var own loadedSets
	config := standardConfig()
	first := own.take(t, config, maps.Sizes{})
	first.programs(t, hooks()[0])
	for _, m := range first.made {
		litter(t, m.Map)
	}
	had, err := first.clean()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range first.made {
		if m.Map.Type() != ebpf.SkStorage && !slices.ContainsFunc(had, func(text string) bool { return strings.HasPrefix(text, m.Name+":") }) {
			t.Errorf("map %s was not clean, but nobody noticed", m.Name)
		}
	}
	if had, err := first.clean(); err != nil || len(had) > 0 {
		t.Errorf("left after cleaning: %v: %v", had, err)
	}
	first.maps.Ct, first.maps.CtPending = first.maps.CtPending, first.maps.Ct
	if _, err := first.clean(); err == nil {
		t.Error("a set with replaced maps counts as clean")
	}
	first.maps.Ct, first.maps.CtPending = first.maps.CtPending, first.maps.Ct
}

// litter writes the first and the last row of a map, as far as it has an order.
func litter(t *testing.T, m *ebpf.Map) {
	t.Helper()
	key, value := bytes.Repeat([]byte{1}, int(m.KeySize())), any(bytes.Repeat([]byte{1}, int(m.ValueSize())))
	switch m.Type() {
	case ebpf.SkStorage:
		return
	case ebpf.RingBuf:
		writeRing(t, m)
		return
	case ebpf.LPMTrie:
		binary.NativeEndian.PutUint32(key, 8)
	case ebpf.PerCPUArray:
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			t.Fatal(err)
		}
		each := raw(cpus, int(m.ValueSize()))
		bytesOf(each)[len(bytesOf(each))-1] = 1 // of the last one
		value = each
		fallthrough
	case ebpf.Array:
		binary.NativeEndian.PutUint32(key, m.MaxEntries()-1)
	}
	if err := m.Put(key, value); err != nil {
		t.Fatalf("write to %s: %v", m, err)
	}
}

// writeRing has a program write to a ring.
func writeRing(t *testing.T, ring *ebpf.Map) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, 1), asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, ring.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8), asm.Mov.Imm(asm.R3, 8), asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if code, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); code != 0 || err != nil {
		t.Fatalf("the ring takes nothing: %d, %v", int32(code), err)
	}
}
