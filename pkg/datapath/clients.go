package datapath

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// followClients doubles the room for clients with session affinity if more than half of it is taken
// and it is below most. Nothing else predicts how many there will be, and a client that is evicted
// may get another backend.
func (d *grower) followClients(most uint32) error {
	rows, room, err := d.countClients()
	if err != nil || rows <= room/2 || room >= most {
		return err
	}
	if err := d.Enlarge(maps.Room{Clients: 2 * room}); err != nil {
		return fmt.Errorf("make room for %d clients: %w", 2*room, err)
	}
	return nil
}

// countClients returns how many clients with session affinity are remembered, and how many there is
// room for. It counts the rows only if, by the programs' count, they may take more than half of the
// room; otherwise the number is an upper bound.
func (d *grower) countClients() (rows, room uint32, err error) {
	d.changing.Lock() // a growth closes the map
	defer d.changing.Unlock()
	if d.maps == nil {
		return 0, 0, fmt.Errorf("count clients with session affinity: %w", ErrNoMaps)
	}
	room = d.maps.Affinity.MaxEntries()
	t, err := maps.ReadLruStats(d.maps.LruStats, "affinity")
	if err != nil {
		return 0, room, err
	}
	if made := t.Made - t.Deleted - d.pushedOut; made <= uint64(room/2) {
		return uint32(made), room, nil
	}
	lruCounts, err := maps.TakeLruCounts(d.maps.LruStats, d.maps.Affinity, "affinity")
	if err != nil {
		return 0, room, err
	}
	d.pushedOut = max(d.pushedOut, lruCounts.Evicted)
	return uint32(lruCounts.Rows), room, nil
}
