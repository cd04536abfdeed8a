package datapath

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// SetOptouts makes the programs leave alone whom want names, and returns how many rows that changed. Those that are in the
// map and not in want go if remove says so.
func (d *Datapath) SetOptouts(want map[maps.OptoutKey]maps.Optout, remove bool) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return 0, fmt.Errorf("write who has opted out: %w", ErrNoMaps)
	}
	return d.maps.SetOptouts(want, remove)
}

// Optouts returns whom the programs leave alone.
func (d *Datapath) Optouts() (map[maps.OptoutKey]maps.Optout, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("read who has opted out: %w", ErrNoMaps)
	}
	return maps.OptoutRows(d.maps.Optout)
}

// HostNetns returns the cookie of the node's own network namespace.
func (d *Datapath) HostNetns() uint64 { return d.hostNetns }
