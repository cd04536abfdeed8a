package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Attach loads this version's programs over the maps and puts them in force. All are loaded before the first is
// attached. Where a link is pinned already its program is switched, so there is no moment without one.
//
// After an error the hooks are as they were, with one exception: where links of an earlier process were being switched,
// the rest is switched all the same, since nobody but that process could open its programs again. The versions share
// their maps, so they may work side by side until the next Attach.
func (d *Datapath) Attach() error {
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("attach programs: %w", ErrNoMaps)
	}
	if err := d.addNeeded(); err != nil {
		return fmt.Errorf("attach programs: %w", err)
	}
	if err := d.adoptFormer(); err != nil {
		return fmt.Errorf("attach programs: %w", err)
	}
	if err := hush(d.maps.Watch); err != nil { // whoever watched has gone with the process before
		return fmt.Errorf("attach programs: %w", err)
	}
	return d.attachPrograms()
}

// attachPrograms loads the programs that are needed and puts them in force.
func (d *Datapath) attachPrograms() error {
	found, err := probe()
	if err != nil {
		return err
	}
	progs, err := load(d.maps, d.settings(found))
	if err != nil {
		return err
	}
	packets, err := d.loadPackets(d.maps)
	if err != nil {
		return errors.Join(err, progs.close())
	}
	if err := d.carryWritten(); err != nil {
		return errors.Join(err, progs.close(), packets.Close())
	}
	if err := d.attachAll(progs); err != nil {
		return errors.Join(err, progs.close(), packets.Close())
	}
	old := d.programs
	d.programs, d.features = progs, found
	d.check()
	return errors.Join(d.attachDevices(packets), d.takeOver(), d.removeStale(), old.close())
}

// attachAll makes every hook run its program: new links first, which can fail and are undone by closing them, then those
// whose program only changes, which has no reason to fail that could not be seen before.
func (d *Datapath) attachAll(progs programs) (err error) {
	var undo []func() error
	defer func() {
		for _, step := range slices.Backward(undo) {
			if err != nil {
				err = errors.Join(err, step())
			}
		}
	}()
	names := slices.Sorted(maps.Keys(progs))
	var kept, fresh []string
	for _, name := range names {
		fits, err := d.inPlace(name, progs[name])
		if err != nil {
			return err
		}
		if fits {
			kept = append(kept, name)
		} else {
			fresh = append(fresh, name)
		}
	}
	added := map[string]link.Link{}
	if len(fresh) > 0 {
		undo = append(undo, d.pins.clearStage)
	}
	for _, name := range fresh {
		if added[name], err = d.addLink(name, progs[name]); err != nil {
			return err
		}
		undo = append(undo, added[name].Close)
	}
	undone, err := d.switchLinks(kept, progs)
	undo = append(undo, undone...)
	if err != nil {
		return err
	}
	for _, name := range fresh {
		unpublish, err := d.publishLink(name, added[name])
		if err != nil {
			return err
		}
		undo = append(undo, unpublish)
	}
	d.adoptLinks(added)
	return nil
}

// inPlace reports whether there is a link of the program that is attached where it should be.
func (d *Datapath) inPlace(name string, prog program) (bool, error) {
	if err := d.openLink(name); err != nil {
		return false, err
	}
	old := d.links[name]
	if old == nil {
		return false, nil
	}
	fits, err := d.fits(old, prog.attach)
	if err != nil {
		return false, fmt.Errorf("inspect link %s: %w", name, err)
	}
	if !fits {
		d.log.Info("link is attached anew", "link", name, "cgroup", d.cgroup.path)
	}
	return fits, nil
}

// openLink opens the pinned link of a program unless it is open or there is none.
func (d *Datapath) openLink(name string) error {
	if d.links[name] != nil {
		return nil
	}
	pinned, err := link.LoadPinnedLink(d.pins.link(name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open link %s: %w", d.pins.link(name), err)
	}
	d.links[name] = pinned
	return nil
}

// fits reports whether the link is attached where it should be. The cgroup of a link that was detached, by hand or
// because the cgroup went, has the id 0.
func (d *Datapath) fits(l link.Link, attach ebpf.AttachType) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, err
	}
	at := info.Cgroup()
	return at != nil && at.CgroupId == d.cgroup.id && uint32(at.AttachType) == uint32(attach), nil
}

// switchLinks makes links run other programs, and returns how to undo that, where that is possible.
func (d *Datapath) switchLinks(names []string, progs programs) (undo []func() error, err error) {
	var errs []error
	for _, name := range names {
		err := d.step("attach: " + name)
		if err == nil {
			err = update(name, d.links[name], progs[name])
		}
		old, ours := d.programs[name]
		switch {
		case err == nil && ours:
			undo = append(undo, func() error { return update(name, d.links[name], old) })
		case err != nil:
			errs = append(errs, err)
			if ours {
				return undo, err
			}
		}
	}
	return undo, errors.Join(errs...)
}

func update(name string, l link.Link, prog program) error {
	if err := l.Update(prog.Program); err != nil {
		return fmt.Errorf("update link %s: %w", name, err)
	}
	return nil
}

// addLink attaches prog with a new link, which nothing keeps yet.
func (d *Datapath) addLink(name string, prog program) (link.Link, error) {
	if err := d.step("attach: " + name); err != nil {
		return nil, err
	}
	added, err := link.AttachCgroup(link.CgroupOptions{Path: d.cgroup.path, Attach: prog.attach, Program: prog.Program})
	if err != nil {
		return nil, fmt.Errorf("attach program %s to %s: %w", name, d.cgroup.path, err)
	}
	return added, nil
}

// publishLink pins a new link in the place of the old one, if there is one, in one step. The old one is kept on the stage
// until it is certain that nothing has to be undone.
func (d *Datapath) publishLink(name string, added link.Link) (undo func() error, err error) {
	if err := d.pins.openStage(); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	staged, pin := d.pins.staged(name), d.pins.link(name)
	if err := added.Pin(staged); err != nil {
		return nil, fmt.Errorf("pin link %s: %w", name, err)
	}
	if err := d.step("attach: publish " + name); err != nil {
		return nil, err
	}
	replaced, err := exchange(staged, pin)
	if err != nil {
		return nil, err
	}
	if !replaced {
		return func() error { return os.Remove(pin) }, nil
	}
	return func() error { return rename(staged, pin) }, nil
}

// adoptLinks closes the links that new ones have replaced. That detaches them, since their pins go with the stage.
func (d *Datapath) adoptLinks(added map[string]link.Link) {
	if len(added) == 0 {
		return
	}
	for name, l := range added {
		if old := d.links[name]; old != nil {
			if err := old.Close(); err != nil {
				d.log.Warn("closing a replaced link", "link", name, "error", err)
			}
		}
		d.links[name] = l
	}
	if err := d.pins.clearStage(); err != nil {
		d.log.Warn("unpinning replaced links", "error", err)
	}
}

// removeStale detaches the programs of an older version that this one does not have, and those that nothing needs now.
func (d *Datapath) removeStale() error {
	names, err := d.pins.linkNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := d.programs[name]; ok {
			continue
		}
		if err := detach(d.pins.link(name)); err != nil {
			return err
		}
		d.log.Info("link that nothing needs removed", "link", name)
	}
	return nil
}

// detach detaches and unpins the link at path. Removing the pin alone would do so too, but some time later.
func detach(path string) error {
	pinned, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open link %s: %w", path, err)
	}
	defer pinned.Close()
	if err := pinned.Detach(); err != nil && !errors.Is(err, link.ErrNotSupported) {
		return fmt.Errorf("detach link %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin link %s: %w", path, err)
	}
	return nil
}
