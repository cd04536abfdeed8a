package podnet

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
)

// List returns the leases by address, as the files in the agent's directory have them, so that it
// works without a running agent. It leaves out files that cannot be read, which the agent removes
// when it starts.
func List(dir string) ([]Lease, error) {
	list, err := listOf(dir, addressesDir, (*Lease).validate)
	slices.SortFunc(list, func(a, b Lease) int { return a.Address.Compare(b.Address) })
	return list, err
}

// Registered returns the pods' registered interfaces by the index of their devices, in the same
// way. It includes those that have their addresses from another plugin.
func Registered(dir string) ([]Record, error) {
	list, err := listOf(dir, recordsDir, (*Record).validate)
	slices.SortFunc(list, func(a, b Record) int { return cmp.Compare(a.Device.Index, b.Device.Index) })
	return list, err
}

func listOf[T any](dir, of string, validate func(*T, string) error) ([]T, error) {
	files := folder{filepath.Join(dir, of)}
	names, err := files.names(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []T
	for _, name := range names {
		var one T
		if files.read(name, &one) == nil && validate(&one, name) == nil {
			list = append(list, one)
		}
	}
	return list, nil
}
