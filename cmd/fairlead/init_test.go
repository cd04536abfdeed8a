package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/test/rig"
)

// A node without a BPF file system gets one, once. The cgroups that are there are left alone.
func TestInit(t *testing.T) {
	rig.Root(t)
	served := rig.NewCgroup(t).Path()
	at := filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() { _ = unix.Unmount(at, 0) })
	args := []string{"init", "--bpffs=" + at, "--cgroup-root=" + served, "--state-dir=" + t.TempDir(), "-o", "json"}
	for _, mounted := range []bool{true, false} {
		out, err := rig.RunChild(nil, nil, "fairlead", args...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var got preparation
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		want := preparation{Mounts: []datapath.Mount{{Kind: "bpf", Path: at, Mounted: mounted}, {Kind: "cgroup2", Path: served}}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if out := rig.Child(t, nil, nil, "fairlead", args[:4]...); out != "bpf is mounted at "+at+"\ncgroup2 is mounted at "+served+"\n" {
		t.Errorf("%s", out)
	}
	for flag, want := range map[string]string{
		"--cgroup-root=" + t.TempDir(): "not in a cgroup2 filesystem",
		"--cgroup-mount=relative":      "not an absolute path",
		"--bpffs=" + served:            "would be hidden",
	} {
		if out, err := rig.RunChild(nil, nil, "fairlead", append(args[:4:4], flag)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", flag, out, err)
		}
	}
}
