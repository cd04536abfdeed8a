package place

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/rig"
)

func TestParseCgroups(t *testing.T) {
	const (
		memory  = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n"
		cpuset  = "cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0\n"
		locked  = "cgroup2 /sys/fs/cgroup cgroup2 ro,nosuid 0 0\n"
		hybrid  = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n"
		unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"
	)
	tests := []struct {
		name, mounts string
		want         *Cgroups
	}{
		{"unified", unified, &Cgroups{Unified: "/sys/fs/cgroup"}},
		{"hybrid", memory + cpuset + hybrid, &Cgroups{Unified: "/sys/fs/cgroup/unified", Old: []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpuset"}}},
		{"read-only and writable", locked + hybrid, &Cgroups{Unified: "/sys/fs/cgroup/unified"}},
		{"only the first version", memory, nil},
		{"only read-only", locked, nil},
	}
	for _, tt := range tests {
		have, err := parseCgroups(tt.mounts)
		if diff := cmp.Diff(tt.want, have); diff != "" || (err == nil) != (tt.want != nil) {
			t.Errorf("%s: %v (-want +have):\n%s", tt.name, err, diff)
		}
	}
}

// A process starts in the namespace and the cgroup, and can be found and killed through the cgroup.
func TestPlace(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	ns := rig.NewNetns(t, "place")
	cgroups, err := FindCgroups()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("fairlead-%d-place", os.Getpid())
	t.Cleanup(func() {
		if err := cgroups.Remove(name); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // Create keeps what exists
		if err := cgroups.Create(name, "system"); err != nil {
			t.Fatal(err)
		}
	}
	p := Place{Netns: ns.Path(), Cgroup: cgroups.Dir(name + "/system")}
	var out bytes.Buffer
	cmd := exec.Command("sh", "-c", "readlink /proc/self/ns/net; grep ^0:: /proc/self/cgroup; sleep 1000")
	reader, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(cmd); err != nil {
		t.Fatal(err)
	}
	for strings.Count(out.String(), "\n") < 2 {
		buffer := make([]byte, 256)
		n, err := reader.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(buffer[:n])
	}
	inside, err := os.Readlink(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	if want := inside + "\n0::/" + name + "/system\n"; out.String() != want {
		t.Errorf("the process is in %q, want %q", out.String(), want)
	}
	if pids, err := cgroups.Pids(name + "/system"); err != nil || len(pids) == 0 {
		t.Errorf("processes of the cgroup: %v, %v", pids, err)
	}
	for range 2 { // removing it again is no error
		if err := cgroups.Remove(name); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v", err)
	}
	for _, hierarchy := range append(cgroups.Old, cgroups.Unified) {
		if _, err := os.Stat(hierarchy + "/" + name); !os.IsNotExist(err) {
			t.Errorf("the cgroup is still in %s: %v", hierarchy, err)
		}
	}
}

func TestPlaceIsMissing(t *testing.T) {
	for _, p := range []Place{{Netns: "/run/netns/does-not-exist"}, {Init: 1 << 30}, {Cgroup: "/does/not/exist"}} {
		if err := p.Run(exec.Command("true")); err == nil {
			t.Errorf("%+v: started", p)
		}
	}
}

// Threads that were in another namespace must not be reused, and least of all be the one that
// /proc/self shows.
func TestThreadsStayAway(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	ns := rig.NewNetns(t, "away")
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	p := Place{Netns: ns.Path()}
	for range 200 {
		if err := p.Do(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/proc/self/ns/net", "/proc/thread-self/ns/net"} {
			if now, err := os.Readlink(path); now != here {
				t.Fatalf("%s is %s now, was %s (%v)", path, now, here, err)
			}
		}
	}
}
