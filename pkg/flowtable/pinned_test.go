package flowtable

import (
	"os"
	"path/filepath"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// newPinned returns maps and the directory in which they are pinned.
func newPinned(t *testing.T) (m *maps.Maps, dir string) {
	t.Helper()
	rig.Root(t)
	dir = filepath.Join(rig.BPFFS(t), "maps")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if err := m.Pin(dir); err != nil {
		t.Fatal(err)
	}
	return m, dir
}
