package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/hostfs"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// status returns the status without the congestion control program, which these tests do not use.
func status(t *testing.T, d *Datapath) Status {
	t.Helper()
	s, err := d.Status()
	if err != nil {
		t.Fatal(err)
	}
	s.Programs = slices.DeleteFunc(s.Programs, func(p ProgramStatus) bool { return hooksOf(p.Name) == congestionHook })
	return s
}

func TestLifecycle(t *testing.T) {
	p := newMounts(t)
	d := open(t, p.Config)
	if d.Adopted() || d.Tables() != nil || d.Sizes() != (maps.Sizes{}) {
		t.Fatal("there are maps before Create")
	}
	if err := d.Attach(); !errors.Is(err, ErrNoMaps) {
		t.Fatalf("Attach without maps: %v", err)
	}
	if err := d.Create(maps.Sizes{Services: 5000}); err != nil {
		t.Fatal(err)
	}
	want := maps.MinSizes()
	want.Services = 8192
	if diff := cmp.Diff(want, d.Sizes()); diff != "" {
		t.Fatal(diff)
	}
	if err := d.Create(maps.Sizes{}); err == nil {
		t.Fatal("Create succeeded twice")
	}
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	if connects(t, p) {
		t.Fatal("reached a service that does not exist")
	}
	if err := serve(d.Tables(), p.backend); err != nil {
		t.Fatal(err)
	}
	if !connects(t, p) {
		t.Fatal("cannot reach the service")
	}
	first := status(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if !connects(t, p) {
		t.Fatal("cannot reach the service while no agent runs")
	}

	d = open(t, p.Config)
	if !d.Adopted() || d.Tables().Services[3].Words[0] == 0 {
		t.Fatal("Open did not adopt the maps")
	}
	if adopted := status(t, d); !slices.EqualFunc(adopted.Programs, first.Programs, func(a, b ProgramStatus) bool {
		return a.Name == b.Name && a.ID == b.ID && a.Attached
	}) {
		t.Fatalf("the programs are %+v, want those left attached: %+v", adopted, first)
	}
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	second := status(t, d)
	for i, prog := range second.Programs {
		if !prog.Attached || prog.ID == first.Programs[i].ID || prog.Tag != first.Programs[i].Tag || prog.Instructions == 0 {
			t.Errorf("not replaced by the same program: %+v, before %+v", prog, first.Programs[i])
		}
	}
	if len(second.Programs) != 11 || !second.Features["refuse with ECONNREFUSED"] || second.CgroupRoot != p.CgroupRoot {
		t.Errorf("status: %+v", second)
	}
	for range 2 {
		if _, err := Cleanup(p.BPFFS); err != nil {
			t.Fatal(err)
		}
	}
	if left := files(t, p.BPFFS); left != nil {
		t.Errorf("left behind: %q", left)
	}
	if attached(t, p.CgroupRoot) != 0 {
		t.Error("a program is still attached")
	}
	if connects(t, p) {
		t.Error("reached the service after cleanup")
	}
}

func TestOneAgentAtATime(t *testing.T) {
	p := newMounts(t)
	d := open(t, p.Config)
	if second, err := Open(p.Config); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second Open while the first Datapath is open: %v, %v", second, err)
	}
	// The second Open must not clear what the first one prepares.
	if err := d.Create(maps.Sizes{}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, p.Config)
}

// attached counts the programs on the connect4 hook of a cgroup.
func attached(t *testing.T, dir string) int {
	t.Helper()
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	result, err := link.QueryPrograms(link.QueryOptions{
		Target: int(cgroup.Fd()), Attach: ebpf.AttachCGroupInet4Connect,
	})
	if err != nil {
		t.Fatal(err)
	}
	return len(result.Programs)
}

func TestOpenRefusesWrongPlaces(t *testing.T) {
	plain := t.TempDir()
	if _, err := Open(Config{BPFFS: plain}); err == nil || !strings.Contains(err.Error(), "mount -t bpf bpf "+plain) {
		t.Errorf("a plain directory for the bpf filesystem: %v", err)
	}
	if _, err := hostfs.CgroupRoot(plain); err == nil {
		t.Error("CgroupRoot accepts a plain directory")
	}
}

func TestAttachMovesToAnotherCgroup(t *testing.T) {
	p := newMounts(t)
	if err := running(t, p).Close(); err != nil {
		t.Fatal(err)
	}
	old := p.CgroupRoot
	p.cgroup = rig.NewCgroup(t)
	p.CgroupRoot = p.cgroup.Path()
	d := open(t, p.Config)
	for _, prog := range status(t, d).Programs {
		if prog.Attached {
			t.Errorf("%s counts as attached while it is attached to another cgroup", prog.Name)
		}
	}
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	if !connects(t, p) {
		t.Error("cannot reach the service from the new cgroup")
	}
	eventually(t, "the old cgroup without programs", func() bool { return attached(t, old) == 0 })
}

func TestAttachReplacesDetachedLink(t *testing.T) {
	p := newMounts(t)
	d := running(t, p)
	if err := d.links["sock_connect4"].Detach(); err != nil {
		t.Fatal(err)
	}
	connect4 := slices.Index(hooks(t), "sock_connect4")
	if s := status(t, d); s.Programs[connect4].Attached {
		t.Fatalf("a detached program counts as attached: %+v", s.Programs[connect4])
	}
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	if !connects(t, p) {
		t.Error("cannot reach the service")
	}
}

func TestAttachRemovesStaleLinks(t *testing.T) {
	p := newMounts(t)
	d := running(t, p)
	stale, err := link.AttachCgroup(link.CgroupOptions{
		Path: p.CgroupRoot, Attach: ebpf.AttachCGroupInet4Connect, Program: d.programs["sock_connect4"].Program,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := d.pins.link("sock_former")
	if err := errors.Join(stale.Pin(path), stale.Close()); err != nil {
		t.Fatal(err)
	}
	if n := attached(t, p.CgroupRoot); n != 2 {
		t.Fatalf("%d programs attached", n)
	}
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale pin is still there: %v", err)
	}
	if n := attached(t, p.CgroupRoot); n != 1 {
		t.Errorf("%d programs attached", n)
	}
}

func TestOpenClearsStage(t *testing.T) {
	p := newMounts(t)
	d := running(t, p)
	if err := d.pins.openStage(); err != nil {
		t.Fatal(err)
	}
	if err := d.maps.PinOne("slots", d.pins.staged("slots")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, p.Config)
	if _, err := os.Stat(d.pins.stage); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the staging directory still exists: %v", err)
	}
}

func TestOpenRefusesForeignPin(t *testing.T) {
	p := newMounts(t)
	if err := running(t, p).Close(); err != nil {
		t.Fatal(err)
	}
	foreign, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	path := filepath.Join(MapsDir(p.BPFFS), "slots")
	if err := errors.Join(os.Remove(path), foreign.Pin(path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(p.Config); !errors.Is(err, maps.ErrIncompatible) || !strings.Contains(err.Error(), path) {
		t.Errorf("open: %v", err)
	}
}

func TestLoadErrorShowsVerifier(t *testing.T) {
	rig.Root(t)
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect,
		Instructions: asm.Instructions{asm.Return()}, License: "GPL",
	})
	if err = bpf.LoadError(err); !strings.Contains(err.Error(), "R0 !read_ok") {
		t.Errorf("the error lacks the verifier's log: %v", err)
	}
}

func TestSetConfig(t *testing.T) {
	spec := sockSpec(t)
	if err := bpf.SetConfig(spec.Variables["sock_cfg"], settings{Features{CanRefuse: true}, 1 << 40, 7, allHooks, "cubic"}.fields()); err != nil {
		t.Fatal(err)
	}
	if value := spec.Variables["sock_cfg"].Value; !slices.Equal(value, []byte{0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 99, 117, 98, 105, 99, 0, 0, 0}) {
		t.Errorf("cfg = %v", value)
	}
	for name, fields := range map[string]map[string]uint64{
		"a member without a value": {},
		"a value without a member": {"can_refuse": 1, "can_fly": 1},
		"another name":             {"can_fly": 1},
	} {
		if err := bpf.SetConfig(spec.Variables["sock_cfg"], fields); err == nil {
			t.Errorf("setConfig accepts %s", name)
		}
	}
}
