package rig

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Do keeps a function on its CPU, and afterward the thread may run on any CPU again.
func TestCPU(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	used := map[CPU]bool{}
	for range before.Count() {
		cpu, err := NextCPU()
		if err != nil {
			t.Fatal(err)
		}
		used[cpu] = true
		err = cpu.Do(func() error {
			var inside unix.CPUSet
			if err := unix.SchedGetaffinity(0, &inside); err != nil {
				return err
			}
			if inside.Count() != 1 || !inside.IsSet(int(cpu)) {
				t.Errorf("on CPU %d the thread may use %d CPUs", cpu, inside.Count())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(used) != before.Count() {
		t.Errorf("NextCPU returned %d of %d CPUs", len(used), before.Count())
	}
	var after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &after); err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Errorf("afterwards the thread may use %d CPUs of %d", after.Count(), before.Count())
	}
}
