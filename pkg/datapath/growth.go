package datapath

import (
	"errors"
	"fmt"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
)

// Grow replaces the maps that are smaller than sizes by larger ones with the same rows, while programs go on reading. The
// caller does not write to the tables meanwhile and takes the new ones from Tables afterwards. After an error the old maps
// are in force as before.
//
// A crash at any step is harmless, because the old and the new maps say the same until Grow returns: whichever of them
// are pinned and whichever the links run on, the next Open takes the pinned ones and its Attach moves every link there.
func (d *Datapath) Grow(sizes maps.Sizes) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("grow maps: %w", ErrNoMaps)
	}
	if d.programs == nil {
		return errors.New("grow maps: no programs are attached yet")
	}
	if err := d.step("grow: create"); err != nil {
		return err
	}
	grown, names, err := d.maps.Grown(sizes)
	if err != nil || grown == nil {
		return err
	}
	tables, err := grown.Tables()
	if err != nil {
		return errors.Join(err, grown.Close())
	}
	progs, err := d.switchTo(grown, names)
	if err != nil {
		return errors.Join(err, tables.Close(), grown.Close())
	}
	old, oldTables, oldPrograms := d.maps, d.tables, d.programs
	d.maps, d.tables, d.programs = grown, tables, progs
	d.log.Info("maps grown", "maps", names, "sizes", grown.Sizes())
	// The growth is in force whatever these say.
	if err := errors.Join(oldTables.Close(), oldPrograms.close(), old.Close(), d.pins.clearStage()); err != nil {
		d.log.Warn("closing what grew", "error", err)
	}
	return nil
}

// switchTo puts grown in force: stages its pins, moves every link to programs over it, and publishes the pins. It undoes
// all of that when one fails.
func (d *Datapath) switchTo(grown *maps.Maps, names []string) (progs programs, err error) {
	undo := []func() error{d.pins.clearStage}
	defer func() {
		if err == nil {
			return
		}
		for _, step := range slices.Backward(undo) {
			err = errors.Join(err, step())
		}
		progs = nil
	}()
	if err := d.step("grow: load"); err != nil {
		return nil, err
	}
	if progs, err = load(grown, d.settings(d.features)); err != nil {
		return nil, err
	}
	undo = append(undo, progs.close)
	if err := d.stage(grown, names); err != nil {
		return nil, err
	}
	for name, prog := range progs {
		if err := d.step("grow: update " + name); err != nil {
			return nil, err
		}
		if err := update(name, d.links[name], prog); err != nil {
			return nil, err
		}
		undo = append(undo, func() error { return update(name, d.links[name], d.programs[name]) })
	}
	for _, name := range names {
		if err := d.step("grow: publish " + name); err != nil {
			return nil, err
		}
		if err := rename(d.pins.staged(name), d.pins.mapPin(name)); err != nil {
			return nil, err
		}
		undo = append(undo, func() error { return d.republish(name) })
	}
	return progs, d.step("grow: close")
}

func (d *Datapath) stage(grown *maps.Maps, names []string) error {
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

// republish puts the pin of the map in force back in its place.
func (d *Datapath) republish(name string) error {
	if err := d.maps.PinOne(name, d.pins.staged(name)); err != nil {
		return err
	}
	return rename(d.pins.staged(name), d.pins.mapPin(name))
}
