package datapath

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// runServe attaches to a cgroup and prints whether its own dials meet the programs. Its arguments
// are the bpf filesystem and the cgroup.
func runServe(args []string) error {
	d, err := Open(Config{BPFFS: args[0], CgroupRoot: args[1]})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := errors.Join(d.Create(maps.Sizes{}), d.Attach()); err != nil {
		return err
	}
	for _, p := range d.attached.Proofs {
		fmt.Print(p.Family, " ", p.State, " ", p.Why, "; ")
	}
	return d.attached.Err()
}

// From inside a container that sees the host's tree read-only, programs can be attached and proven.
func TestAttachInContainer(t *testing.T) {
	for _, layout := range []string{"read-only", "hybrid", "own and host"} {
		t.Run(layout, func(t *testing.T) {
			p, dir := newMounts(t), t.TempDir()
			pod := rig.NewCgroupIn(t, p.cgroup, "pod")
			served := filepath.Join(dir, "host", filepath.Base(p.CgroupRoot))
			if layout == "hybrid" {
				served = filepath.Join(dir, "host/unified", filepath.Base(p.CgroupRoot))
			}
			out := rig.Child(t, pod, nil, "contained", "own", layout, dir, "serve", p.BPFFS, served)
			if out != "IPv4 proven ; IPv6 proven ; " {
				t.Errorf("found %q", out)
			}
		})
	}
}
