package datapath

import (
	"errors"

	"fairlead.io/fairlead/pkg/maps"
)

// copyOlder copies rows of another version's maps to this version's.
func (d *grower) copyOlder(to *maps.Maps, which maps.CopyScope) error {
	names := to.Older()
	if len(names) == 0 {
		return nil
	}
	lost, err := to.CopyOlder(which)
	if err != nil {
		return err
	}
	if which == maps.AllRows {
		d.log.Info("carried over the maps of another version", "maps", names)
	}
	if len(lost) > 0 {
		d.log.Warn("lost rows of another version's maps", "maps", lost)
	}
	return nil
}

// copyWritten copies again what programs have written since. It does nothing once this version's
// programs have been attached: from then on the new maps are current, even if the pins of the old
// ones are still to be replaced.
func (d *grower) copyWritten() error {
	if d.switched {
		return nil
	}
	return d.copyOlder(d.maps, maps.RowsOfPrograms)
}

// takeOver replaces the pinned maps of another version, now that the programs use this version's.
func (d *grower) takeOver() error {
	names := d.maps.Older()
	if len(names) == 0 {
		return nil
	}
	d.switched = true
	if err := d.step("older: switched"); err != nil {
		return err
	}
	if err := errors.Join(wait(), d.copyOlder(d.maps, maps.LateRows)); err != nil {
		d.log.Warn("rows that were written while programs were switched may be lost", "error", err)
	}
	if err := d.step("older: stage"); err != nil {
		return err
	}
	// An earlier attempt may have left some.
	if err := errors.Join(d.pins.clearStage(), d.pins.openStage()); err != nil {
		return err
	}
	for _, name := range names {
		if err := d.maps.PinOne(name, d.pins.staged(name)); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := d.step("older: publish " + name); err != nil {
			return err
		}
		if err := rename(d.pins.staged(name), d.pins.mapPin(name)); err != nil {
			return err
		}
	}
	if err := d.step("older: close"); err != nil {
		return err
	}
	d.log.Info("replaced the maps of another version", "maps", names)
	return errors.Join(d.maps.ForgetOlder(), d.pins.clearStage())
}
