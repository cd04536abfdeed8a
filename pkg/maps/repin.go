package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Repin pins every map whose pin in dir is gone, or is of something else, and returns the names of
// these maps. There must be no maps of another version (Older), whose pins are not to be replaced
// yet.
func (m *Maps) Repin(dir string) (repinned []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	all := append(m.fields(), field{Info: Info{Name: layoutsPin, Map: m.layouts}})
	var errs []error
	for _, f := range all {
		path := filepath.Join(dir, f.Name)
		is, err := isPinned(f.Map, path)
		if is {
			continue
		}
		if err == nil {
			err = removePin(path)
		}
		if err == nil {
			err = pin(f.Map, path)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		repinned = append(repinned, f.Name)
	}
	return repinned, errors.Join(errs...)
}

// isPinned reports whether the pin at a path is of that map.
func isPinned(m *ebpf.Map, path string) (bool, error) {
	want, err := m.Info()
	if err != nil {
		return false, fmt.Errorf("inspect map at %s: %w", path, err)
	}
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil { // no pin, or a pin of something else: both are replaced
		return false, nil
	}
	defer pinned.Close()
	there, err := pinned.Info()
	if err != nil {
		return false, fmt.Errorf("inspect map at %s: %w", path, err)
	}
	id, _ := want.ID()
	now, _ := there.ID()
	return id == now, nil
}

func removePin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what is pinned instead of a map: %w", err)
	}
	return nil
}
