package podnet

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
)

// List returns who has which address, by address, as the files in the agent's directory have it: also while no agent runs.
// What cannot be read is left out, as a start of the agent would.
func List(dir string) ([]Lease, error) {
	files := folder{filepath.Join(dir, addressesDir)}
	names, err := files.names(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Lease
	for _, name := range names {
		var lease Lease
		if files.read(name, &lease) == nil && lease.validate(name) == nil {
			list = append(list, lease)
		}
	}
	slices.SortFunc(list, func(a, b Lease) int { return a.Address.Compare(b.Address) })
	return list, nil
}
