// Package queues gives the devices that lead out of the node a queue that lets no packet leave before its time.
package queues

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/listing"
)

// Config is what a Keeper needs.
type Config struct {
	// Devices returns those that lead out of the node.
	Devices func() []devices.Device
	// Pair is the device where what stays on the node waits, by its index; 0 if nothing does. Programs know it by that.
	Pair int
	// IsPod tells devices of pods, which may come and go unheeded, by their names.
	IsPod func(name string) bool
	// Load returns what may wait there of pods that are kept to rates; nil where nobody knows.
	Load func() Load
	Log  *slog.Logger
}

// Keeper keeps a queue at each of the devices by which packets leave the node.
type Keeper struct {
	cfg Config

	mu    sync.Mutex
	stats Stats
}

// Stats are what a Keeper found.
type Stats struct {
	Devices []string          // that have the queue, of those that lead out of the node
	Lacking map[string]string // by name: why a device has not
	Dropped uint64            // packets that found no room in the queues, of those that are there now
	Error   string
}

// New returns a Keeper that has given the devices their queues, if nothing was in the way.
func New(cfg Config) *Keeper {
	k := &Keeper{cfg: cfg}
	k.look()
	return k
}

// Run keeps the queues where they are until the context ends.
func (k *Keeper) Run(ctx context.Context) error {
	return devices.Watch(ctx, k.cfg.Log, k.cfg.IsPod, nil, func() error { k.look(); return nil })
}

// Stats returns what the last look found.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stats
}

// look gives the devices, and no others, their queues, and notes how that went.
func (k *Keeper) look() {
	now := Stats{Lacking: map[string]string{}}
	err := k.set(&now)
	slices.Sort(now.Devices)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		now.Error = err.Error()
	}
	if now.Error != "" && now.Error != k.stats.Error {
		k.cfg.Log.Warn("giving devices a queue that keeps pods to their rates: trying again", "error", err)
	}
	for name, why := range now.Lacking {
		if k.stats.Lacking[name] != why {
			k.cfg.Log.Warn("a device does not keep pods to their rates", "device", name, "reason", why)
		}
	}
	k.stats = now
}

func (k *Keeper) set(now *Stats) error {
	if k.cfg.Pair != 0 {
		if _, err := keepPair(k.cfg.Pair); err != nil {
			return err
		}
	}
	links, err := listing.Of(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list the node's devices: %w", err)
	}
	all, err := readQueues()
	if err != nil {
		return err
	}
	var indexes []int
	for _, d := range k.cfg.Devices() {
		indexes = append(indexes, d.Index)
	}
	chosen := leaves(links, append(indexes, k.cfg.Pair))
	var load Load
	if k.cfg.Load != nil {
		load = k.cfg.Load()
	}
	var errs []error
	for _, link := range links {
		at := link.Attrs()
		if !slices.Contains(chosen, link) {
			errs = append(errs, all[at.Index].remove())
			continue
		}
		why, err := all[at.Index].keep(link, roomFor(load, speedOf(sysDevices, link)))
		switch {
		case err != nil:
			now.Lacking[at.Name] = err.Error()
		case why != "":
			now.Lacking[at.Name] = why
		default:
			if at.Index != k.cfg.Pair {
				now.Devices = append(now.Devices, at.Name)
			}
			now.Dropped += all[at.Index].dropped()
		}
	}
	return errors.Join(errs...)
}

// sysDevices is where the kernel says how fast devices are.
const sysDevices = "/sys/class/net"

// leaves returns the devices by which what leaves by those with the indexes is sent: the parts of a bond or a bridge, what
// a VLAN is on. A packet that has waited there need not wait above, and would be held to its time twice.
func leaves(links []netlink.Link, indexes []int) []netlink.Link {
	var found []netlink.Link
	seen := map[int]bool{}
	for len(indexes) > 0 {
		var parts []int
		for _, link := range links {
			at := link.Attrs()
			if !slices.Contains(indexes, at.Index) || seen[at.Index] {
				continue
			}
			seen[at.Index] = true
			var own []int
			if link.Type() == "vlan" {
				own = append(own, at.ParentIndex)
			}
			for _, part := range links {
				if part.Attrs().MasterIndex == at.Index {
					own = append(own, part.Attrs().Index)
				}
			}
			if len(own) == 0 {
				found = append(found, link)
			}
			parts = append(parts, own...)
		}
		indexes = parts
	}
	slices.SortFunc(found, func(a, b netlink.Link) int { return cmp.Compare(a.Attrs().Index, b.Attrs().Index) })
	return found
}

// longest is for how long a packet may have to wait, and a little more.
const longest = 2500 * time.Millisecond

// Drain waits until nothing waits in the queues of any Keeper any more, or nothing can that has waited there since it was called. What somebody has
// told programs before holds from then on.
func Drain() error {
	for until := time.Now().Add(longest); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		all, err := readQueues()
		if err != nil {
			return err
		}
		left := uint32(0)
		for _, q := range all {
			if q.isOurs() {
				left += waiting(q.root)
			}
		}
		if left == 0 {
			break
		}
	}
	return nil
}

// Restore takes the pair and the queues of any Keeper away, at which the kernel puts its own in their place, and returns the names of
// the devices.
func Restore() (names []string, err error) {
	all, err := readQueues()
	if err != nil {
		return nil, err
	}
	var errs []error
	for index, q := range all {
		if !q.isOurs() {
			continue
		}
		err := q.remove()
		if link, known := netlink.LinkByIndex(index); known == nil && err == nil {
			names = append(names, link.Attrs().Name)
		}
		if !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	slices.Sort(names)
	return names, errors.Join(append(errs, removePair())...)
}
