package datapath

import (
	"errors"
	stdmaps "maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

func sockSpec(t *testing.T) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := bpf.LoadSock()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// steps returns every step of starting an agent, with and without maps, and of a growth.
func steps(t *testing.T) []string {
	t.Helper()
	p := newMounts(t)
	var seen []string
	p.failpoint = func(step string) error {
		if !slices.Contains(seen, step) {
			seen = append(seen, step)
		}
		return nil
	}
	d := running(t, p)
	if err := d.Grow(double(d.Sizes())); err != nil {
		t.Fatal(err)
	}
	// All hooks are alike: the first, the last and one in between stand for all.
	names := hooks(t)
	stand := []string{names[0], names[len(names)/2], names[len(names)-1]}
	return slices.DeleteFunc(seen, func(step string) bool {
		name := step[strings.LastIndex(step, " ")+1:]
		return slices.Contains(names, name) && !slices.Contains(stand, name)
	})
}

// hooks returns the names of the programs that are attached by default, sorted.
func hooks(t *testing.T) []string {
	t.Helper()
	names := slices.Sorted(stdmaps.Keys(sockSpec(t).Programs))
	return slices.DeleteFunc(names, func(name string) bool { return hooksOf(name) == congestionHook })
}

func double(s maps.Sizes) maps.Sizes {
	return maps.Sizes{Svcs: 2 * s.Svcs, Services: 2 * s.Services, Slots: 2 * s.Slots, Backends: 2 * s.Backends, Flows: s.Flows}
}

// An agent is killed at every step, with the capabilities that it has in a cluster. The next one
// has to repair everything, and once a service has been served, no connect may fail.
func TestCrashAtEveryStep(t *testing.T) {
	all := steps(t)
	if len(all) < 15 {
		t.Fatalf("only %q, which are too few to be all steps", all)
	}
	for _, step := range all {
		t.Run(step, func(t *testing.T) {
			p := newMounts(t)
			served := slices.Contains(growthSteps(all), step)
			var load client
			if served {
				if err := running(t, p).Close(); err != nil {
					t.Fatal(err)
				}
				load = startClient(t, p)
			}
			var died *exec.ExitError
			if err := p.runAgent(step); !errors.As(err, &died) || died.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
				t.Fatalf("the agent was not killed: %v", err)
			}
			if err := p.runAgent("none"); err != nil {
				t.Fatalf("the next agent: %v", err)
			}
			if !served {
				load = startClient(t, p)
			}
			if result := load.stop(t); len(result.Failed) > 0 || result.Tried == 0 {
				t.Errorf("%d of %d connects failed: %s", len(result.Failed), result.Tried, result.Failed[0])
			}
			checkWhole(t, p)
		})
	}
}

// growthSteps returns the steps of a start with existing pins: nothing is created, and links are
// updated.
func growthSteps(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(step string) bool {
		return step == "create: stage" || step == "create: publish" ||
			len(step) > 16 && step[:16] == "attach: publish "
	})
}

// checkWhole checks that there are exactly the usual pins and links, and that every link's program
// uses the pinned maps.
func checkWhole(t *testing.T, p mounts) {
	t.Helper()
	d := open(t, p.Config)
	want := []string{"fairlead", "fairlead/v1", "fairlead/v1/links"}
	for _, name := range hooks(t) {
		want = append(want, "fairlead/v1/links/"+name)
	}
	want = append(want, "fairlead/v1/maps")
	var names []string
	for _, info := range d.Maps().All() {
		names = append(names, "fairlead/v1/maps/"+info.Name)
	}
	names = append(names, "fairlead/v1/maps/layouts")
	slices.Sort(names)
	if diff := cmp.Diff(append(want, names...), files(t, p.BPFFS)); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
	if s := d.Sizes(); s.Services < 2048 || uint32(len(d.Tables().Names)) != s.Services {
		t.Errorf("sizes: %+v", s)
	}
	if !usesPinned(t, d) {
		t.Error("an attached program does not use the pinned maps")
	}
}

// usesPinned reports whether every attached program uses the pinned maps and no others of the same
// names.
func usesPinned(t *testing.T, d *Datapath) bool {
	t.Helper()
	pinned := map[ebpf.MapID]bool{}
	for _, of := range d.Maps().All() {
		pinned[mapID(t, of.Map)] = true
	}
	for _, of := range status(t, d).Programs {
		for name, id := range mapsOf(t, ebpf.ProgramID(of.ID)) {
			if !pinned[id] && !strings.Contains(name, "rodata") {
				t.Logf("%s uses another %s", of.Name, name)
				return false
			}
		}
	}
	return true
}

// mapsOf returns the maps that a program uses, by name.
func mapsOf(t *testing.T, id ebpf.ProgramID) map[string]ebpf.MapID {
	t.Helper()
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]ebpf.MapID{}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		m.Close()
		if err != nil {
			t.Fatal(err)
		}
		used[info.Name] = id
	}
	return used
}

func mapID(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func TestGrow(t *testing.T) {
	p := newMounts(t)
	d := running(t, p)
	load := startClient(t, p)
	peers, tcp, counters := mapID(t, d.Maps().SockOrigins), mapID(t, d.Maps().ConnOrigins), mapID(t, d.Maps().Counters)
	for range rig.Times(t, 5) {
		before := d.Sizes()
		turn := d.Tables().Services[3].Turn
		if err := d.Grow(double(before)); err != nil {
			t.Fatal(err)
		}
		tables := d.Tables()
		if diff := cmp.Diff(double(before), d.Sizes()); diff != "" {
			t.Fatal(diff)
		}
		if tables.Backends[7] != maps.BackendOf(p.backend.Addr(), p.backend.Port(), 6) || tables.Names[3].Text[0] != 'x' ||
			tables.Services[3].Turn < turn || len(tables.Names) != int(2*before.Services) {
			t.Fatal("rows were lost")
		}
	}
	if err := d.Grow(d.Sizes()); err != nil {
		t.Error(err)
	}
	if result := load.stop(t); len(result.Failed) > 0 {
		t.Errorf("%d of %d connects failed: %s", len(result.Failed), result.Tried, result.Failed[0])
	}
	if mapID(t, d.Maps().SockOrigins) != peers || mapID(t, d.Maps().ConnOrigins) != tcp || mapID(t, d.Maps().Counters) != counters {
		t.Error("a map that does not grow was replaced")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	checkWhole(t, p)
}

// A growth that fails at any step leaves the old maps in use, and the next one works.
func TestGrowFails(t *testing.T) {
	boom := errors.New("boom")
	grow := slices.DeleteFunc(steps(t), func(step string) bool { return step[:4] != "grow" })
	if len(grow) < 8 {
		t.Fatalf("only %q, which are too few to be all steps", grow)
	}
	for _, fail := range grow {
		t.Run(fail, func(t *testing.T) {
			p := newMounts(t)
			armed := true
			p.failpoint = func(step string) error {
				if armed && step == fail {
					return boom
				}
				return nil
			}
			d := running(t, p)
			load := startClient(t, p)
			before, tables, pinned := status(t, d), d.Tables(), files(t, p.BPFFS)
			if err := d.Grow(double(d.Sizes())); !errors.Is(err, boom) {
				t.Fatalf("Grow: %v", err)
			}
			if diff := cmp.Diff(before, status(t, d), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("status (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(pinned, files(t, p.BPFFS)); diff != "" {
				t.Errorf("pins (-before +after):\n%s", diff)
			}
			if d.Tables() != tables || d.Sizes() != maps.MinSizes() || !usesPinned(t, d) {
				t.Error("the old maps are not in use")
			}
			reopened, err := maps.Open(d.pins.maps, true)
			if err != nil {
				t.Fatal(err)
			}
			defer reopened.Close()
			for i, info := range reopened.All() {
				if mapID(t, info.Map) != mapID(t, d.Maps().All()[i].Map) {
					t.Errorf("the pin %s is not the map in use", info.Name)
				}
			}
			armed = false
			if err := d.Grow(double(d.Sizes())); err != nil {
				t.Errorf("Grow again: %v", err)
			}
			if result := load.stop(t); len(result.Failed) > 0 {
				t.Errorf("%d of %d connects failed: %s", len(result.Failed), result.Tried, result.Failed[0])
			}
			if _, err := os.Stat(d.pins.stage); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the staging directory still exists: %v", err)
			}
		})
	}
}
