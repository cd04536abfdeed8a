package rig

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// inventory is the set of kernel objects that this process has, each as a line for messages.
type inventory map[string]bool

// NoLeaks fails the test if it ends with more cgroups, mounts, namespaces or child processes than
// this process has now. Call it first in a test, so that it looks after the test's own cleanup is
// done. Tests that run in parallel with it must not use the rig.
func NoLeaks(t T) {
	t.Helper()
	before, err := takeInventory()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		left, err := before.added()
		if err != nil {
			t.Errorf("%v", err)
		}
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// added returns what exists now and is not in i.
func (i inventory) added() ([]string, error) {
	now, err := takeInventory()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(now, func(line string, _ bool) bool { return i[line] })
	return slices.Sorted(maps.Keys(now)), nil
}

func takeInventory() (inventory, error) {
	i := inventory{}
	for _, add := range []func() error{i.addMounts, i.addNamespaces, i.addChildren} {
		if err := add(); err != nil {
			return nil, fmt.Errorf("take inventory: %w", err)
		}
	}
	return i, nil
}

// addMounts adds the mounts and cgroups whose names start with this process's prefix.
func (i inventory) addMounts() error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if strings.HasPrefix(filepath.Base(m.path), ownPrefix()) {
			i["mount "+m.path] = true
		}
	}
	root, err := findCgroup2(mounts)
	if err != nil {
		return nil // without cgroup2 there is no cgroup to leave behind
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ownPrefix()) {
			i["cgroup "+filepath.Join(root, entry.Name())] = true
		}
	}
	return nil
}

// addNamespaces adds the network namespaces that an open file keeps alive.
func (i inventory) addNamespaces() error {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		// An error means that the file has been closed in the meantime.
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && strings.HasPrefix(target, "net:[") {
			i["open network namespace "+target] = true
		}
	}
	return nil
}

// addChildren adds the processes that this one has started and not waited for.
func (i inventory) addChildren() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		// An error means that the process has ended in the meantime.
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue
		}
		if name, parent, ok := parseStat(string(stat)); ok && parent == os.Getpid() {
			i["process "+entry.Name()+" "+name] = true
		}
	}
	return nil
}

// parseStat parses "pid (name) state parent ..."; the name may contain spaces and parentheses.
func parseStat(stat string) (name string, parent int, ok bool) {
	from, to := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if from < 0 || to < from {
		return "", 0, false
	}
	fields := strings.Fields(stat[to+1:])
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return stat[from : to+1], parent, err == nil
}
