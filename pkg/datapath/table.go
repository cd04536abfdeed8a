package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// table is the larger of two maps of established flows, and how far it is in taking the other's place. Both are pinned,
// so whoever starts finds them.
type table struct {
	next  *ebpf.Map
	stage *ebpf.Map // the word that all programs share; bpf/lib/table.h says what it means
}

// newTable makes a map for so many rows and pins it with its stage, which comes first: without it nobody asks.
func (d *Datapath) newTable(rows uint32) (t *table, err error) {
	t = &table{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close(), d.pins.clearTable())
		}
	}()
	if err := d.step("flows: create"); err != nil {
		return t, err
	}
	if t.next, err = maps.NewFlowMap(rows); err != nil {
		return t, err
	}
	spec, err := bpf.LoadTc()
	if err != nil {
		return t, fmt.Errorf("read program specs: %w", err)
	}
	if t.stage, err = ebpf.NewMap(spec.Maps["ct_stage"]); err != nil {
		return t, fmt.Errorf("create map ct_stage: %w", err)
	}
	if err := errors.Join(d.pins.clearTable(), os.Mkdir(d.pins.table, 0o700)); err != nil {
		return t, fmt.Errorf("create pin directory: %w", err)
	}
	if err := maps.PinFlowMap(t.stage, d.pins.tableStage()); err != nil {
		return t, err
	}
	if err := d.step("flows: pin"); err != nil {
		return t, err
	}
	return t, maps.PinFlowMap(t.next, d.pins.tableNext())
}

// openTable opens what an interrupted growth has left; nil if flows are in one map alone.
func (p pins) openTable() (t *table, err error) {
	t = &table{}
	defer func() {
		if errors.Is(err, fs.ErrNotExist) {
			t, err = nil, t.close()
		} else if err != nil {
			t, err = nil, errors.Join(err, t.close())
		}
	}()
	if t.stage, err = ebpf.LoadPinnedMap(p.tableStage(), nil); err != nil {
		return t, fmt.Errorf("open map %s: %w", p.tableStage(), err)
	}
	t.next, err = maps.OpenFlowMap(p.tableNext())
	return t, err
}

// replace gives an object both maps.
func (t *table) replace(old *ebpf.Map, spec *ebpf.CollectionSpec, over map[string]*ebpf.Map) {
	over["ct"], over["ct_old"] = t.next, old
	spec.Maps["ct"].MaxEntries, spec.Maps["ct_old"].MaxEntries = t.next.MaxEntries(), old.MaxEntries()
	if t.stage != nil {
		over["ct_stage"] = t.stage
	}
}

func (t *table) at() (stage uint32, err error) {
	if err := t.stage.Lookup(uint32(0), &stage); err != nil {
		return 0, fmt.Errorf("read the stage of the growth of ct: %w", err)
	}
	return stage, nil
}

func (t *table) say(stage uint32) error {
	if err := t.stage.Put(uint32(0), stage); err != nil {
		return fmt.Errorf("write the stage of the growth of ct: %w", err)
	}
	return nil
}

func (t *table) close() error {
	var errs []error
	for _, m := range []*ebpf.Map{t.next, t.stage} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

func (p pins) tableStage() string { return filepath.Join(p.table, "stage") }
func (p pins) tableNext() string  { return filepath.Join(p.table, "ct") }

func (p pins) clearTable() error {
	if err := os.RemoveAll(p.table); err != nil {
		return fmt.Errorf("clear %s: %w", p.table, err)
	}
	return nil
}

// GrowFlows gives the table of established flows room for at least so many rows, while packets pass and flows begin. None
// is lost and none changes. Nobody may forget flows meanwhile, and a Flows from before looks at the old map afterwards.
//
// Programs insert flows, so a copy would miss those that begin while it is made, or while some devices run programs over
// the old map and others over the new. Therefore every device first gets programs that know both maps and use the old;
// then a word tells them all to use the new one and to look into the old; then the rest is carried over; then the word
// says that the new one has everything, and every device gets programs that know it alone.
//
// After an error flows may be in two maps, which works, but costs time, and none is forgotten: GrowFlows is to be called
// again. A crash at any step is harmless; the next Open finishes what programs have begun to use, and removes the rest.
func (d *Datapath) GrowFlows(rows uint32) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	if d.maps == nil {
		return fmt.Errorf("grow the table of flows: %w", ErrNoMaps)
	}
	if d.programs == nil {
		return errors.New("grow the table of flows: no programs are attached yet")
	}
	if d.table == nil {
		if rows <= d.maps.Ct.MaxEntries() {
			return nil
		}
		if err := d.beginTable(rows); err != nil {
			return fmt.Errorf("grow the table of flows: %w", err)
		}
	}
	if err := d.endTable(); err != nil {
		return fmt.Errorf("grow the table of flows: %w", err)
	}
	return nil
}

// beginTable makes every device's programs use two maps. After an error there is one, as before.
func (d *Datapath) beginTable(rows uint32) (err error) {
	if d.table, err = d.newTable(rows); err != nil {
		d.table = nil
		return err
	}
	old, err := d.switchPackets("flows: load", "flows: devices")
	if err != nil {
		t := d.table
		d.table = nil
		return errors.Join(err, t.close(), d.pins.clearTable())
	}
	if err = wait(); err == nil {
		err = d.step("flows: both")
	}
	if err == nil {
		err = d.table.say(maps.TableBoth)
	}
	if err != nil {
		t := d.table
		d.table = nil
		return errors.Join(err, d.switchBack(old), t.close(), d.pins.clearTable())
	}
	d.carrying.Store(true)
	if err := old.Close(); err != nil {
		d.log.Warn("closing programs over the old map of flows", "error", err)
	}
	return nil
}

// switchBack makes every device run the programs again that did, and closes those that do.
func (d *Datapath) switchBack(old devices.Programs) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	growing := d.outside.programs
	// Where that fails some go on with both maps, and use the old alone. That is no reason to lose sight of the others.
	err := d.hooks.Switch(old)
	d.outside.programs = old
	return errors.Join(err, growing.Close())
}

// endTable carries the rest over and gives up the old map. After an error it is to be called again.
func (d *Datapath) endTable() error {
	if err := d.carryOver(d.table, d.maps.Ct); err != nil {
		return err
	}
	t := d.table
	d.table = nil
	d.carrying.Store(false)
	d.log.Info("table of flows grown", "rows", t.next.MaxEntries(), "from", d.maps.Ct.MaxEntries())
	d.mu.Lock()
	err := errors.Join(d.maps.ReplaceFlows(t.next), t.stage.Close())
	d.mu.Unlock()
	old, switchErr := d.switchPackets("flows: load last", "flows: devices last")
	if switchErr != nil {
		// They find everything in the new map, and keep the old one's memory until they are replaced.
		d.log.Warn("devices stay with programs that know two maps of flows, until the next start", "error", switchErr)
		return err
	}
	err = errors.Join(err, old.Close(), d.step("flows: close"))
	if err := errors.Join(err, d.pins.clearTable()); err != nil {
		d.log.Warn("closing what grew", "error", err)
	}
	return nil
}

// carryOver makes the new map have every flow, and puts it in the place of the old one. It may be repeated.
func (d *Datapath) carryOver(t *table, old *ebpf.Map) error {
	stage, err := t.at()
	if err != nil {
		return err
	}
	if stage == maps.TableBoth {
		if err := errors.Join(wait(), d.step("flows: carry")); err != nil {
			return err
		}
		if err := carry(old, t.next); err != nil {
			return err
		}
		if err := d.step("flows: new"); err != nil {
			return err
		}
		if err := t.say(maps.TableNew); err != nil {
			return err
		}
	}
	if err := errors.Join(wait(), d.step("flows: publish")); err != nil {
		return err
	}
	return rename(d.pins.tableNext(), d.pins.mapPin("ct"))
}

// finishTable finishes what an interrupted growth has left, if programs have begun to use it, and removes it otherwise.
// They need nothing from whoever started them.
func (d *Datapath) finishTable() (err error) {
	t, err := d.pins.openTable()
	if err != nil {
		return err
	}
	if t == nil {
		return d.pins.clearTable()
	}
	defer func() { err = errors.Join(err, t.close()) }()
	stage, err := t.at()
	if err != nil {
		return err
	}
	if stage != maps.TableOld {
		old, err := maps.OpenFlowMap(d.pins.mapPin("ct"))
		if err != nil {
			return err
		}
		defer old.Close()
		if err := d.carryOver(t, old); err != nil {
			return fmt.Errorf("finish the growth of the table of flows: %w", err)
		}
		d.log.Info("finished an interrupted growth of the table of flows", "rows", t.next.MaxEntries())
	}
	return d.pins.clearTable()
}

// switchPackets loads the programs of packets as they should be now, makes every device run them, and returns those that
// were. After an error the devices run these.
func (d *Datapath) switchPackets(load, attach string) (old devices.Programs, err error) {
	if err := d.step(load); err != nil {
		return old, err
	}
	progs, err := d.loadPackets(d.maps)
	if err != nil {
		return old, err
	}
	if err := d.step(attach); err != nil {
		return old, errors.Join(err, progs.Close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.hooks.Switch(progs); err != nil {
		return old, errors.Join(err, progs.Close())
	}
	old = d.outside.programs
	d.outside.programs = progs
	return old, nil
}

// wait returns when every program that was at work has ended.
func wait() (err error) {
	barrier, err := maps.NewBarrier()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, barrier.Close()) }()
	return barrier.Wait()
}
