package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/datapath"
)

// pinnedIDs returns the kernel's number of each map that is pinned.
func (n *node) pinnedIDs() map[string]ebpf.MapID {
	n.t.Helper()
	dir, ids := datapath.MapsDir(n.bpffs), map[string]ebpf.MapID{}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	for _, entry := range entries {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, entry.Name()), nil)
		if err != nil {
			continue // removed, or replaced by something else
		}
		if info, err := m.Info(); err == nil {
			ids[entry.Name()], _ = info.ID()
		}
		m.Close()
	}
	return ids
}

// TestRemovedPins checks that a running agent says which pins of its maps somebody has removed, and
// pins the same maps again, so that the next agent finds what was in them; and its links.
func TestRemovedPins(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1")
	n.start()
	before, dir := n.pinnedIDs(), datapath.MapsDir(n.bpffs)
	links := filepath.Join(filepath.Dir(dir), "links")
	at := func(name string) string { return filepath.Join(dir, name) }
	linked, err := os.ReadDir(links)
	if err != nil || len(linked) == 0 {
		t.Fatal(linked, err)
	}
	for _, damage := range []struct {
		name string
		do   func() error
		gone []string // named in the status
	}{
		{"some are removed or replaced", func() error {
			return errors.Join(
				os.Remove(at("svcs")), os.Remove(at("lru_stats")), os.Remove(at("layouts")), os.Remove(filepath.Join(links, linked[0].Name())),
				os.Remove(at("names")), os.Link(at("services"), at("names")), os.Remove(at("backends")), os.Mkdir(at("backends"), 0o700))
		}, []string{at("svcs"), at("backends") + " (", at("lru_stats")}},
		{"all are removed", func() error { return os.RemoveAll(filepath.Dir(dir)) }, []string{at("svcs") + ", ", " more. "}},
	} {
		damaged := func() []string {
			if err := damage.do(); err != nil {
				t.Fatalf("%s: %v", damage.name, err)
			}
			return n.degradation()
		}
		said := damaged()
		for cmp.Equal(before, n.pinnedIDs()) { // the agent was faster
			said = damaged()
		}
		for _, gone := range damage.gone {
			if !slices.ContainsFunc(said, func(s string) bool {
				return strings.HasPrefix(s, "Somebody has removed or replaced pins: ") && strings.Contains(s, gone)
			}) {
				t.Errorf("%s: the status does not name %s: %q", damage.name, gone, said)
			}
		}
		if slices.Contains(said, "There are no maps.") {
			t.Errorf("%s: the status says %q", damage.name, said)
		}
		n.waitFor(damage.name+": the same maps are pinned again", func() bool { return cmp.Equal(before, n.pinnedIDs()) })
		n.waitFor(damage.name+": the links are pinned again", func() bool {
			list, err := os.ReadDir(links)
			return err == nil && len(list) == len(linked)
		})
		n.waitFor(damage.name+": the node is healthy again", func() bool { return len(n.degradation()) == 0 })
	}
	if status := n.run("status"); !strings.Contains(status, "restored that somebody had removed") {
		t.Errorf("the status does not tell of it:\n%s", status)
	}
	if got := n.connect(3); got["198.18.0.1"] != 3 {
		t.Errorf("connections after all that: %v", got)
	}
}
