package datapath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// repinEvery is how often the pins of the maps are looked at. That takes less than a millisecond.
const repinEvery = 5 * time.Second

// WatchPins pins maps again whose pins somebody has removed or replaced, until the context ends, and
// calls restored with their names. Links are attached again at once, by CheckAttachment. Programs and
// this process do without pins, but the commands do not, and neither does the next agent: it would
// make empty maps in their place.
func (d *Datapath) WatchPins(ctx context.Context, restored func(names []string)) error {
	again := time.NewTicker(repinEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			names := d.Repin()
			if len(names) > 0 {
				restored(names)
			}
			if d.lacksLinks() {
				d.CheckAttachment()
			}
		}
	}
}

// lacksLinks reports whether the pin of a link is gone.
func (d *cgroupLinks) lacksLinks() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.links {
		if _, err := os.Lstat(d.pins.link(name)); errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// Repin does once what WatchPins does, and returns the names of the maps. While maps are being
// replaced, it leaves the pins alone.
func (d *Datapath) Repin() (names []string) {
	if !d.changing.TryLock() {
		return nil
	}
	defer d.changing.Unlock()
	if d.maps == nil || len(d.maps.Older()) > 0 {
		return nil
	}
	names, err := d.maps.Repin(d.pins.maps)
	// Links are pinned again by CheckAttachment, which needs the directory.
	if dirErr := os.MkdirAll(d.pins.links, 0o700); dirErr != nil {
		err = errors.Join(err, fmt.Errorf("create pin directory: %w", dirErr))
	}
	if len(names) > 0 {
		d.log.Warn("somebody removed pins of maps: pinned them again", "maps", names, "directory", d.pins.maps)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.repinned.Error
	d.repinned.Error = ""
	if err != nil {
		d.repinned.Error = err.Error()
		if d.repinned.Error != was {
			d.log.Error("cannot pin maps again: trying again", "error", err)
		}
	}
	if len(names) > 0 {
		d.repinned.Restored += uint64(len(names))
		d.repinned.Last, d.repinned.LastTime = names, time.Now()
	}
	return names
}
