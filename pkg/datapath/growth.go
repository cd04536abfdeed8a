package datapath

import (
	"errors"
	"fmt"
	"slices"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// grower replaces maps by larger ones, or by those of another version, while programs use them.
type grower struct {
	*shared
	*cgroupLinks
	*deviceLinks
	switched bool // programs of this version use the maps that replace those of another version
	// pushedOut is how many clients with session affinity were ever evicted, as of the last census.
	// Guarded by changing.
	pushedOut uint64
}

// Grow replaces the maps that are smaller than sizes by larger ones with the same rows, while
// programs go on reading them. The caller must not write to the tables meanwhile and must get the
// new ones from Tables afterward. If Grow fails, the old maps stay in use.
//
// A crash at any step is harmless, because the old and the new maps have the same content until
// Grow returns: whichever of them are pinned and whichever the links' programs use, the next Open
// takes the pinned ones and its Attach moves every link to them.
func (d *grower) Grow(sizes maps.Sizes) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	grown, names, err := d.larger(func() (*maps.Maps, []string, error) { return d.maps.Grown(sizes) })
	if err != nil || grown == nil {
		return err
	}
	tables, err := grown.Tables()
	if err != nil {
		return errors.Join(err, grown.Close())
	}
	old := d.tables
	err = d.replace(grown, names, func() { d.maps, grown, d.tables = grown, d.maps, tables })
	if err != nil {
		return errors.Join(err, tables.Close(), grown.Close())
	}
	d.warn(errors.Join(old.Close(), grown.Close()))
	return nil
}

// Enlarge is Grow for the maps that evict rows, to which programs write meanwhile; the tables stay
// valid. What programs write is carried over, except for a few milliseconds in which some programs
// use the old map and some the new: a client that comes twice in that time may get two backends,
// and the answer to a first packet, or a later fragment, may find no row. If ct_pending grew, an older
// Flows still uses the old map.
func (d *grower) Enlarge(room maps.Room) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	grown, names, err := d.larger(func() (*maps.Maps, []string, error) { return d.maps.Enlarged(room) })
	if err != nil || grown == nil {
		return err
	}
	if err := d.replace(grown, names, func() { d.maps.Exchange(grown, names) }); err != nil {
		return errors.Join(err, grown.Close())
	}
	if err := errors.Join(wait(), grown.CopyRows(d.maps, names)); err != nil {
		d.log.Warn("rows that were written while maps grew may be lost", "error", err)
	}
	d.warn(grown.Close())
	return nil
}

// GrowPolicies is Grow for one of the maps that say what policies come to, which then has at least so many rows.
// Only that map is replaced, and OpenEnforceMaps has the new one. It reports whether the map has grown: some do
// not, and none without end.
func (d *grower) GrowPolicies(name string, rows uint32) (bool, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	grown, names, err := d.larger(func() (*maps.Maps, []string, error) { return d.maps.GrownPolicies(name, rows) })
	if err != nil || grown == nil {
		return false, err
	}
	if err := d.replace(grown, names, func() { d.maps.Exchange(grown, names) }); err != nil {
		return false, errors.Join(err, grown.Close())
	}
	d.warn(grown.Close())
	return true, nil
}

// larger creates larger maps. It returns nil if none are needed.
func (d *grower) larger(create func() (*maps.Maps, []string, error)) (*maps.Maps, []string, error) {
	if d.maps == nil {
		return nil, nil, fmt.Errorf("grow maps: %w", ErrNoMaps)
	}
	if d.programs == nil {
		return nil, nil, errors.New("grow maps: no programs are attached yet")
	}
	if err := d.step("grow: create"); err != nil {
		return nil, nil, err
	}
	return create()
}

// replace makes the programs use larger maps. adopt makes them the Datapath's.
func (d *grower) replace(grown *maps.Maps, names []string, adopt func()) (err error) {
	if err := d.step("grow: load"); err != nil {
		return err
	}
	progs, err := load(grown, d.settings(d.features))
	if err != nil {
		return err
	}
	packets, err := d.loadPackets(grown)
	if err != nil {
		return errors.Join(err, progs.close())
	}
	if err := d.maps.CopyRows(grown, names); err != nil {
		return errors.Join(err, progs.close(), packets.Close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.switchTo(grown, names, progs, packets); err != nil {
		return errors.Join(err, progs.close(), packets.Close())
	}
	oldPrograms, oldPackets := d.programs, d.outside.programs
	d.programs, d.outside.programs = progs, packets
	adopt()
	d.log.Info("maps grown", "maps", names, "sizes", d.maps.Sizes())
	d.warn(errors.Join(oldPrograms.close(), oldPackets.Close(), d.pins.clearStage()))
	return nil
}

// warn logs an error after a growth has taken effect.
func (d *grower) warn(err error) {
	if err != nil {
		d.log.Warn("cannot close the maps or programs that a growth replaced", "error", err)
	}
}

// switchTo switches to grown: it stages the pins, updates every link to programs over grown, and
// publishes the pins. If a step fails it undoes all of that.
func (d *grower) switchTo(grown *maps.Maps, names []string, progs programs, packets devices.Programs) (err error) {
	undo := []func() error{d.pins.clearStage}
	defer func() {
		if err == nil {
			return
		}
		for _, step := range slices.Backward(undo) {
			err = errors.Join(err, step())
		}
	}()
	if err = d.stage(grown, names); err != nil {
		return err
	}
	for name, prog := range progs {
		if err = d.step("grow: update " + name); err == nil {
			err = update(name, d.links[name], prog)
		}
		if err != nil {
			return err
		}
		undo = append(undo, func() error { return update(name, d.links[name], d.programs[name]) })
	}
	undone, err := d.growDevices(packets)
	if err != nil {
		return err
	}
	undo = append(undo, undone)
	for _, name := range names {
		if err = d.step("grow: publish " + name); err == nil {
			err = rename(d.pins.staged(name), d.pins.mapPin(name))
		}
		if err != nil {
			return err
		}
		undo = append(undo, func() error { return d.republish(name) })
	}
	return d.step("grow: close")
}

// growDevices switches the devices to programs over larger maps. It returns a function that undoes
// this.
func (d *deviceLinks) growDevices(packets devices.Programs) (undo func() error, err error) {
	if err := d.step("grow: devices"); err != nil {
		return nil, err
	}
	old := d.outside.programs
	if err := d.hooks.Switch(packets); err != nil {
		return nil, err
	}
	return func() error { return d.hooks.Switch(old) }, nil
}

func (d *grower) stage(grown *maps.Maps, names []string) error {
	if err := d.step("grow: stage"); err != nil {
		return err
	}
	if err := d.pins.openStage(); err != nil {
		return err
	}
	for _, name := range names {
		if err := grown.PinOne(name, d.pins.staged(name)); err != nil {
			return err
		}
	}
	return nil
}

// republish restores the pin of the map that is in use.
func (d *grower) republish(name string) error {
	if err := d.maps.PinOne(name, d.pins.staged(name)); err != nil {
		return err
	}
	return rename(d.pins.staged(name), d.pins.mapPin(name))
}
