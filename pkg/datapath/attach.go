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
func (d *Datapath) Attach() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("attach programs: %w", ErrNoMaps)
	}
	found, err := probe()
	if err != nil {
		return err
	}
	progs, err := load(d.maps, settings{found, d.hostNetns})
	if err != nil {
		return err
	}
	if err := d.attachAll(progs); err != nil {
		return errors.Join(err, progs.close())
	}
	old := d.programs
	d.programs, d.features = progs, found
	return errors.Join(d.removeStale(), old.close())
}

func (d *Datapath) attachAll(progs programs) error {
	for _, name := range slices.Sorted(maps.Keys(progs)) {
		if err := d.step("attach: " + name); err != nil {
			return err
		}
		if err := d.attach(name, progs[name]); err != nil {
			return err
		}
	}
	return nil
}

// attach makes the link of one hook run prog.
func (d *Datapath) attach(name string, prog program) error {
	if err := d.openLink(name); err != nil {
		return err
	}
	if old := d.links[name]; old != nil {
		if ok, err := d.fits(old, prog.attach); err != nil {
			return fmt.Errorf("inspect link %s: %w", name, err)
		} else if ok {
			return update(name, old, prog)
		}
		d.log.Info("link is moved to another cgroup", "link", name, "cgroup", d.cgroup.path)
	}
	return d.replaceLink(name, prog)
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

func update(name string, l link.Link, prog program) error {
	if err := l.Update(prog.Program); err != nil {
		return fmt.Errorf("update link %s: %w", name, err)
	}
	return nil
}

// replaceLink attaches prog with a new link, which takes the place of the old one, if there is one, in one step.
func (d *Datapath) replaceLink(name string, prog program) (err error) {
	added, err := link.AttachCgroup(link.CgroupOptions{Path: d.cgroup.path, Attach: prog.attach, Program: prog.Program})
	if err != nil {
		return fmt.Errorf("attach program %s to %s: %w", name, d.cgroup.path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, added.Close(), d.pins.clearStage())
		}
	}()
	if err := d.pins.openStage(); err != nil {
		return err
	}
	if err := added.Pin(d.pins.staged(name)); err != nil {
		return fmt.Errorf("pin link %s: %w", name, err)
	}
	if err := d.step("attach: publish " + name); err != nil {
		return err
	}
	if err := rename(d.pins.staged(name), d.pins.link(name)); err != nil {
		return err
	}
	old := d.links[name]
	d.links[name] = added
	if old != nil {
		if err := old.Close(); err != nil {
			d.log.Warn("closing a replaced link", "link", name, "error", err)
		}
	}
	return d.pins.clearStage()
}

// removeStale detaches the programs of an older version that this one does not have.
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
		d.log.Info("link of a former program removed", "link", name)
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
