package podnet

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Device is the node's end of a connected pod.
type Device struct {
	Name string `json:"name"`
	Pod  string `json:"pod"` // namespace/name; empty if the runtime named no pod
}

// Devices lists the pods' devices on this node.
func Devices() ([]Device, error) {
	_, pods, err := links()
	if err != nil {
		return nil, err
	}
	list := make([]Device, 0, len(pods))
	for _, pod := range pods {
		list = append(list, Device{Name: pod.name, Pod: pod.alias})
	}
	slices.SortFunc(list, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Forget removes all files of a Network that has ended, and returns the directories that existed.
// Devices stay: their pods live on, and they tell the next Network which addresses are in use.
func Forget(dir string) ([]string, error) {
	var gone []string
	for _, name := range []string{recordsDir, addressesDir} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return gone, fmt.Errorf("remove records: %w", err)
		}
		gone = append(gone, path)
	}
	return gone, nil
}
