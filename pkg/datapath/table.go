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

// table is the larger of two maps of established flows while it replaces the other, and the stage
// of that. Both are pinned, so that the next process finds them.
type table struct {
	next  *ebpf.Map
	stage *ebpf.Map // the word that all programs share; see bpf/lib/flow.h
}

// newTable creates a map for that many rows and pins it with its stage. The stage comes first:
// without it the map is ignored.
func (d *grower) newTable(rows uint32) (t *table, err error) {
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

// openTable opens what an interrupted growth left. It returns nil if all flows are in one map.
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

// replace makes an object use both maps.
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

func (p pins) tableNext() string { return filepath.Join(p.table, "ct") }

func (p pins) clearTable() error {
	if err := os.RemoveAll(p.table); err != nil {
		return fmt.Errorf("clear %s: %w", p.table, err)
	}
	return nil
}

// GrowFlows gives the map of established flows room for at least that many rows, while packets pass
// and flows begin. No flow is lost or changed. Flows must not be deleted meanwhile, and an older
// Flows still uses the old map afterward.
//
// Programs insert flows, so a plain copy would miss those that begin during the copy, or while some
// devices run programs over the old map and others over the new. Therefore every device first gets
// programs that know both maps and use the old one; then a word tells them all to insert into the
// new map and to look into the old as well; then the remaining rows are copied; then the word says
// that the new map has everything, and every device gets programs that know only that.
//
// If it fails, flows may be in two maps, which works but costs time and blocks the deletion of
// flows: call GrowFlows again. A crash at any step is harmless; the next Open finishes what
// programs have begun to use, and removes the rest.
func (d *grower) GrowFlows(rows uint32) error {
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

// beginTable makes the programs of every device use two maps. If it fails, they use one, as before.
func (d *grower) beginTable(rows uint32) (err error) {
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
	d.copying.Store(true)
	if err := old.Close(); err != nil {
		d.log.Warn("cannot close programs over the old map of flows", "error", err)
	}
	return nil
}

// switchBack makes every device run the old programs again, and closes the current ones.
func (d *grower) switchBack(old devices.Programs) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	growing := d.outside.programs
	// A device where this fails goes on with programs that know both maps but use only the old one.
	// Keep track of the old programs all the same.
	err := d.hooks.Switch(old)
	d.outside.programs = old
	return errors.Join(err, growing.Close())
}

// endTable copies the remaining rows and gives up the old map. If it fails, call it again.
func (d *grower) endTable() error {
	if err := d.copyTable(d.table, d.maps.Ct); err != nil {
		return err
	}
	t := d.table
	d.table = nil
	d.copying.Store(false)
	d.log.Info("grew the table of flows", "rows", t.next.MaxEntries(), "from", d.maps.Ct.MaxEntries())
	d.mu.Lock()
	err := errors.Join(d.maps.ReplaceFlows(t.next), t.stage.Close())
	d.mu.Unlock()
	old, switchErr := d.switchPackets("flows: load last", "flows: devices last")
	if switchErr != nil {
		// They find everything in the new map, but keep the old one in memory until they are
		// replaced.
		d.log.Warn("devices keep programs that use two maps of flows, until the next start", "error", switchErr)
		return err
	}
	err = errors.Join(err, old.Close(), d.step("flows: close"))
	if err := errors.Join(err, d.pins.clearTable()); err != nil {
		d.log.Warn("cannot clean up after growing the table of flows", "error", err)
	}
	return nil
}

// copyTable copies every flow to the new map and pins that in the place of the old one. It may be
// repeated.
func (d *grower) copyTable(t *table, old *ebpf.Map) error {
	stage, err := t.at()
	if err != nil {
		return err
	}
	if stage == maps.TableBoth {
		if err := errors.Join(wait(), d.step("flows: carry")); err != nil {
			return err
		}
		if err := copyRows(old, t.next); err != nil {
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

// finishTable finishes an interrupted growth if programs have begun to use the new map, and
// otherwise removes it. The programs need nothing from the process that started them.
func (d *grower) finishTable() (err error) {
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
		if err := d.copyTable(t, old); err != nil {
			return fmt.Errorf("finish the growth of the table of flows: %w", err)
		}
		d.log.Info("finished an interrupted growth of the table of flows", "rows", t.next.MaxEntries())
	}
	return d.pins.clearTable()
}

// switchPackets loads the packet programs in the current configuration, makes every device run
// them, and returns the previous ones. If it fails, the devices run the previous ones.
func (d *grower) switchPackets(load, attach string) (old devices.Programs, err error) {
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

// wait returns once every program that was running has ended.
func wait() (err error) {
	barrier, err := maps.NewBarrier()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, barrier.Close()) }()
	return barrier.Wait()
}
