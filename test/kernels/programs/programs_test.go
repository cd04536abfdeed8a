// Package programs loads every program on the running kernel in the same way as the agent, and
// reports the number of instructions that the verifier processed for each.
package programs

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	fairleadmaps "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// Every existing program gets attached. If JOB_OUT names a directory, the test writes the file for
// the kernel matrix there.
func TestEveryProgramLoads(t *testing.T) {
	rig.Root(t)
	bpffs := rig.BPFFS(t)
	cgroup := rig.NewCgroup(t)
	t.Cleanup(func() {
		if _, err := datapath.Cleanup(bpffs); err != nil {
			t.Error(err)
		}
	})
	d, err := datapath.Open(datapath.Config{
		BPFFS: bpffs, CgroupRoot: cgroup.Path(), Congestion: "cubic", Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := errors.Join(d.Create(fairleadmaps.Sizes{}), d.Attach()); err != nil {
		t.Fatal(err)
	}
	status, err := d.Status()
	if err != nil {
		t.Fatal(err)
	}
	walked := map[string]uint32{}
	for _, program := range status.Programs {
		if !program.Attached {
			t.Errorf("program %s is not attached", program.Name)
		}
		walked[program.Name] = program.Instructions
	}
	if diff := cmp.Diff(compiled(t), slices.Sorted(maps.Keys(walked))); diff != "" {
		t.Errorf("programs (-compiled +attached):\n%s", diff)
	}
	flows, err := d.Flows() // attaches more programs
	if err != nil {
		t.Fatal(err)
	}
	if _, err := flows.Jiffies(); err != nil {
		t.Error(err)
	}
	if err := flows.Close(); err != nil {
		t.Error(err)
	}
	t.Run("socket origins", func(t *testing.T) {
		rig.MapIterators(t)
		origins, err := d.SocketOrigins(true) // loads a program that is not attached
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(origins.Each(func(uint64, fairleadmaps.SockOrigin) {}), origins.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Logf("instructions that the verifier processed: %v", walked)
	if dir := os.Getenv("JOB_OUT"); dir != "" {
		write(t, filepath.Join(dir, "instructions.json"), walked)
	}
}

// compiled returns the names of the programs in the objects.
func compiled(t *testing.T) []string {
	t.Helper()
	spec, err := bpf.LoadSock()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(spec.Programs))
}

func write(t *testing.T, path string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
