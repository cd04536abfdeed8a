package datapath

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// SetOptouts makes the programs leave alone the pods in want, and returns how many rows it changed.
// It deletes rows that are not in want only if remove is set.
func (d *shared) SetOptouts(want map[maps.OptoutKey]maps.Optout, remove bool) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return 0, fmt.Errorf("write which pods have opted out: %w", ErrNoMaps)
	}
	return d.maps.SetOptouts(want, remove)
}

// Optouts returns the pods that the programs leave alone.
func (d *shared) Optouts() (map[maps.OptoutKey]maps.Optout, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("read which pods have opted out: %w", ErrNoMaps)
	}
	return maps.OptoutRows(d.maps.Optout)
}

// HostNetns returns the cookie of the node's own network namespace.
func (d *cgroupLinks) HostNetns() uint64 { return d.hostNetns }
