package datapath

import (
	"errors"

	"fairlead.io/fairlead/pkg/maps"
)

// Maps of another version are pinned until programs of this one are at work. A crash before finds them again and begins
// anew; one that comes between the switch of programs and the last pin costs the flows that began in that time their rows.

// carryOlder brings rows of another version's maps to those of this one.
func (d *Datapath) carryOlder(to *maps.Maps, which maps.Carrying) error {
	names := to.Older()
	if len(names) == 0 {
		return nil
	}
	lost, err := to.CarryOlder(which)
	if err != nil {
		return err
	}
	if which == maps.AllRows {
		d.log.Info("maps of another version are carried over", "maps", names)
	}
	if len(lost) > 0 {
		d.log.Warn("rows of another version are lost", "maps", lost)
	}
	return nil
}

// carryWritten does so once more for what programs have written since. Once those of this version are at work the rows in
// the new maps are the ones that count, also if the pins of the old ones could not be replaced yet.
func (d *Datapath) carryWritten() error {
	if d.switched {
		return nil
	}
	return d.carryOlder(d.maps, maps.RowsOfPrograms)
}

// takeOver puts the maps of this version in the place of those of another, now that its programs use them.
func (d *Datapath) takeOver() error {
	names := d.maps.Older()
	if len(names) == 0 {
		return nil
	}
	d.switched = true
	if err := d.step("older: switched"); err != nil {
		return err
	}
	if err := errors.Join(wait(), d.carryOlder(d.maps, maps.LateRows)); err != nil {
		d.log.Warn("rows that were written while programs were switched may be lost", "error", err)
	}
	if err := d.step("older: stage"); err != nil {
		return err
	}
	if err := errors.Join(d.pins.clearStage(), d.pins.openStage()); err != nil { // an attempt before may have left some
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
	d.log.Info("maps of another version are replaced", "maps", names)
	return errors.Join(d.maps.ForgetOlder(), d.pins.clearStage())
}
