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

	"fairlead.io/fairlead/pkg/hostfs"
)

// Attach loads this version's programs over the maps and attaches them. It loads all before it
// attaches the first. Where a link is pinned it only replaces the link's program, so there is no
// moment without one.
//
// If it fails, the hooks are as they were, with one exception: if it was updating links of an
// earlier process, it updates the rest too, since it cannot get hold of that process's programs to
// go back. The versions share their maps, so they can run side by side until the next Attach.
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
	if err := d.importConnections(); err != nil {
		return fmt.Errorf("attach programs: %w", err)
	}
	if err := hush(d.maps.Watch); err != nil { // those who watched have gone with the previous process
		return fmt.Errorf("attach programs: %w", err)
	}
	return d.attachPrograms()
}

// attachPrograms loads the programs that are needed and attaches them.
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
	if err := d.copyWritten(); err != nil {
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

// cgroupLinks attaches the socket programs to the cgroup, and repairs what becomes of that.
type cgroupLinks struct {
	*shared
	cgroup     hostfs.Cgroup
	hostNetns  uint64
	congestion string
	token      token // identifies this process's test dials to the programs it loads
	features   Features
	programs   programs // attached by the links; nil before Attach
	// hookTypes are the attach types of all socket programs, by name; nil until needed.
	hookTypes map[string]ebpf.AttachType
	links     map[string]link.Link // by program name
	attached  Attachment
}

// attachAll makes every hook run its program. It creates new links first, which can fail and is
// undone by closing them, then updates existing links, which should not fail if it got that far.
func (d *cgroupLinks) attachAll(progs programs) (err error) {
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

// inPlace reports whether the program has a link that is attached where it should be.
func (d *cgroupLinks) inPlace(name string, prog program) (bool, error) {
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
		d.log.Info("link is attached elsewhere: attaching a new one", "link", name, "cgroup", d.cgroup.Path)
	}
	return fits, nil
}

// openLink opens the pinned link of a program, if there is one and it is not open.
func (d *cgroupLinks) openLink(name string) error {
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

// fits reports whether the link is attached where it should be. A link that was detached, by hand
// or because its cgroup was removed, has the cgroup id 0.
func (d *cgroupLinks) fits(l link.Link, attach ebpf.AttachType) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, err
	}
	at := info.Cgroup()
	return at != nil && at.CgroupId == d.cgroup.ID && uint32(at.AttachType) == uint32(attach), nil
}

// switchLinks updates the programs of links. It returns functions that undo this, where possible.
func (d *cgroupLinks) switchLinks(names []string, progs programs) (undo []func() error, err error) {
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

// addLink attaches prog with a new link, which is not pinned yet.
func (d *cgroupLinks) addLink(name string, prog program) (link.Link, error) {
	if err := d.step("attach: " + name); err != nil {
		return nil, err
	}
	added, err := link.AttachCgroup(link.CgroupOptions{Path: d.cgroup.Path, Attach: prog.attach, Program: prog.Program})
	if err != nil {
		return nil, fmt.Errorf("attach program %s to %s: %w", name, d.cgroup.Path, err)
	}
	return added, nil
}

// publishLink pins a new link in the place of the old one, if any, in one step. The old link stays
// in the staging directory until it is certain that nothing has to be undone.
func (d *cgroupLinks) publishLink(name string, added link.Link) (undo func() error, err error) {
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

// adoptLinks closes the links that new ones replaced. This detaches them, since their pins go with
// the staging directory.
func (d *cgroupLinks) adoptLinks(added map[string]link.Link) {
	if len(added) == 0 {
		return
	}
	for name, l := range added {
		if old := d.links[name]; old != nil {
			if err := old.Close(); err != nil {
				d.log.Warn("cannot close a replaced link", "link", name, "error", err)
			}
		}
		d.links[name] = l
	}
	if err := d.pins.clearStage(); err != nil {
		d.log.Warn("cannot unpin replaced links", "error", err)
	}
}

// removeStale detaches the programs that this version does not have or does not need now.
func (d *cgroupLinks) removeStale() error {
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
		d.log.Info("removed a link that is no longer needed", "link", name)
	}
	return nil
}

// detach detaches and unpins the link at path. Removing the pin would detach it too, but only some
// time later.
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
