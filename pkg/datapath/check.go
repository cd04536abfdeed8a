package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/pkg/hostfs"
)

const (
	// checkEvery is how often to check the attachment, checkSoon how often while something is wrong
	// with it.
	checkEvery = time.Minute
	checkSoon  = 5 * time.Second
)

// WatchAttachment calls CheckAttachment every minute until the context ends, and more often while
// something is wrong.
func (d *cgroupLinks) WatchAttachment(ctx context.Context) error {
	d.mu.Lock()
	found := d.attached
	d.mu.Unlock()
	for {
		wait := checkEvery
		if !found.sound() {
			wait = checkSoon
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
			found = d.CheckAttachment()
		}
	}
}

// CheckAttachment repairs what was detached, changed or unpinned since Attach, and proves by test
// dials that the programs work. Status returns the result until the next check.
func (d *cgroupLinks) CheckAttachment() Attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.check()
}

func (d *cgroupLinks) check() Attachment {
	was := d.attached
	found := Attachment{Checked: time.Now(), Mended: was.Mended, Proofs: []Proof{}}
	if d.programs == nil {
		found.Error = "no programs are attached yet"
	} else {
		mended, err := d.mend()
		if err != nil {
			found.Error = err.Error()
		}
		found.Mended += uint64(mended)
		found.Proofs = d.prove()
	}
	d.attached = found
	d.logAttachment(&was, &found)
	return found
}

// mend brings every link back to the state in which Attach left it, and returns how many it had to
// repair.
func (d *cgroupLinks) mend() (mended int, err error) {
	// A cgroup that was removed and created again is another cgroup, although links to the old one
	// count as attached while sockets of the old one are open. Only the root cannot be removed: if
	// its path leads nowhere, the mount is gone.
	switch now, err := hostfs.OpenCgroup(d.cgroup.Path); {
	case err == nil:
		d.cgroup = now
	case d.cgroup.ID != hostfs.RootID:
		d.cgroup.ID = hostfs.GoneID
		return 0, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(d.programs)) {
		done, err := d.mendLink(name, d.programs[name])
		if err != nil {
			errs = append(errs, err)
		}
		if done {
			mended++
		}
	}
	return mended, errors.Join(errs...)
}

func (d *cgroupLinks) mendLink(name string, prog program) (mended bool, err error) {
	switch sound, runs, err := d.inspect(name, prog); {
	case err != nil:
		return false, fmt.Errorf("inspect link %s: %w", name, err)
	case sound && runs:
		return false, nil
	case sound:
		d.log.Warn("link runs another program: switching it back", "link", name)
		err := update(name, d.links[name], prog)
		return err == nil, err
	}
	d.log.Warn("link is detached or not pinned: attaching it again", "link", name, "cgroup", d.cgroup.Path)
	added, err := d.addLink(name, prog)
	if err != nil {
		return false, err
	}
	if _, err := d.publishLink(name, added); err != nil {
		return false, errors.Join(err, added.Close(), d.pins.clearStage())
	}
	d.adoptLinks(map[string]link.Link{name: added})
	return true, nil
}

// inspect reports whether the program's link is attached and pinned where it should be, and whether
// it runs the program.
func (d *cgroupLinks) inspect(name string, prog program) (sound, runs bool, err error) {
	l := d.links[name]
	if l == nil {
		return false, false, nil
	}
	info, err := l.Info()
	if err != nil {
		return false, false, err
	}
	if fits, err := d.fits(l, prog.attach); err != nil || !fits {
		return false, false, err
	}
	pinned, err := link.LoadPinnedLink(d.pins.link(name), nil)
	if err != nil { // no pin, or a pin of something else: both are repaired the same way
		return false, false, nil
	}
	defer pinned.Close()
	there, err := pinned.Info()
	if err != nil {
		return false, false, err
	}
	id, err := prog.id()
	return there.ID == info.ID, info.Program == id, err
}

// logAttachment logs changes for the worse and for the better.
func (d *cgroupLinks) logAttachment(was, now *Attachment) {
	if now.Error != "" && was.Error != now.Error {
		d.log.Error("cannot attach programs: trying again", "error", now.Error)
	}
	if was.Error != "" && now.Error == "" {
		d.log.Info("programs are attached again")
	}
	for i, p := range now.Proofs {
		if i < len(was.Proofs) && was.Proofs[i] == p {
			continue
		}
		switch p.State {
		case Missed:
			d.log.Error("programs are attached but do not work", "family", p.Family, "found", p.Why, "cgroup", d.cgroup.Path)
		case Unknown:
			d.log.Info("cannot prove that the programs work", "family", p.Family, "why", p.Why)
		default:
			d.log.Debug("programs work", "family", p.Family, "state", p.State)
		}
	}
}
