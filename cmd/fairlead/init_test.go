package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/congestion"
	"fairlead.io/fairlead/pkg/hostfs"
	"fairlead.io/fairlead/test/rig"
)

// TestInit checks that a node without a BPF file system gets one, once. Mounted cgroups are left
// alone.
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
		want := preparation{Mounts: []hostfs.Mount{{Kind: "bpf", Path: at, Mounted: mounted}, {Kind: "cgroup2", Path: served}}}
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
		"--bpffs=" + served:            "would hide its content",
	} {
		if out, err := rig.RunChild(nil, nil, "fairlead", append(args[:4:4], flag)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", flag, out, err)
		}
	}
}

// TestInitBBR checks that an agent uses what init has found out about BBR, until init finds out
// something else.
func TestInitBBR(t *testing.T) {
	rig.Root(t)
	if err := congestion.Probe(congestion.Way{}); err != nil {
		rig.Lacking(t, "bbr", err.Error())
	}
	served, bpffs, dir := rig.NewCgroup(t).Path(), rig.BPFFS(t), t.TempDir()
	const bypass, stack = "--host-routing=bpf", "--host-routing=stack"
	for _, c := range []struct {
		flag, bbr    string
		agent        string // the agent's --host-routing
		found, lacks string
	}{
		{bypass, "annotated", "bpf", "works", ""},
		{bypass, "true", "stack", "works", "not been tested with --pod-device=veth --host-routing=stack:"},
		{stack, "true", "stack", "use --host-routing=bpf", "use --host-routing=bpf"},
		{stack, "true", "bpf", "use --host-routing=bpf", "not been tested with --pod-device=veth --host-routing=bpf:"},
		{bypass, "true", "bpf", "works", ""},
		{bypass, "false", "bpf", "", `run "fairlead init --bbr=true"`},
	} {
		out := rig.Child(t, nil, nil, "fairlead", "init", "--bpffs="+bpffs, "--cgroup-root="+served, "--state-dir="+dir, "--devices=none", c.flag, "--bbr="+c.bbr, "-o", "json")
		var got preparation
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		cfg := &config.Config{StateDir: dir, BBR: "true", HostRouting: c.agent}
		if lacks := podnetwork.LacksBBR(cfg); !strings.Contains(got.BBR, c.found) || (got.BBR == "") != (c.found == "") || !strings.Contains(lacks, c.lacks) || (lacks == "") != (c.lacks == "") {
			t.Errorf("%s --bbr=%s: found %q, and an agent with --host-routing=%s %q", c.flag, c.bbr, got.BBR, c.agent, lacks)
		}
		if cfg.BBR = "false"; podnetwork.LacksBBR(cfg) != "" || podnetwork.BBRStatus(cfg) != nil {
			t.Errorf("%s --bbr=%s: with --bbr=false, it lacks %q", c.flag, c.bbr, podnetwork.LacksBBR(cfg))
		}
	}
}
