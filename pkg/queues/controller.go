// Package queues gives the devices that lead out of the node a queue that holds packets until their
// departure time.
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
)

// Config is what a Controller needs.
type Config struct {
	// Devices returns the devices that lead out of the node.
	Devices func() []devices.Device
	// Pair is the index of the device where packets that stay on the node wait, by which the
	// programs know it; 0 for none.
	Pair int
	// IsPod reports whether a device with this name is a pod's. Changes of those are ignored.
	IsPod func(name string) bool
	// Load returns how much may wait in the queues for rate-limited pods. If nil, that is not
	// known.
	Load func() Load
	Log  *slog.Logger
}

// Controller maintains the queues of the devices by which packets leave the node.
type Controller struct {
	cfg Config

	mu     sync.Mutex
	status Status
}

// New returns a Controller that has set up the queues, as far as it could; Status returns what was in
// the way.
func New(cfg Config) *Controller {
	k := &Controller{cfg: cfg}
	k.apply()
	return k
}

// Run maintains the queues until the context ends.
func (k *Controller) Run(ctx context.Context) error {
	return devices.Watch(ctx, k.cfg.Log, k.cfg.IsPod, nil, func() error { k.apply(); return nil })
}

// Status returns what the last look found.
func (k *Controller) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// apply gives exactly the right devices their queues, and records the result.
func (k *Controller) apply() {
	now := Status{Lacking: map[string]string{}}
	err := k.set(&now)
	slices.Sort(now.Devices)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		now.Error = err.Error()
	}
	if now.Error != "" && now.Error != k.status.Error {
		k.cfg.Log.Warn("cannot give devices the queues that hold pods to their rates, trying again", "error", err)
	}
	for name, why := range now.Lacking {
		if k.status.Lacking[name] != why {
			k.cfg.Log.Warn("a device does not hold pods to their rates", "device", name, "reason", why)
		}
	}
	k.status = now
}

func (k *Controller) set(now *Status) error {
	if k.cfg.Pair != 0 {
		if _, err := keepPair(k.cfg.Pair); err != nil {
			return err
		}
	}
	links, err := devices.Dump(netlink.LinkList)
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
		why, err := all[at.Index].ensure(link, roomFor(load, speedOf(sysDevices, link)))
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

// sysDevices is where the kernel exposes the speed of devices.
const sysDevices = "/sys/class/net"

// leaves returns the devices that finally send what leaves by the devices with these indexes: the
// ports of a bond or a bridge, and the device below a VLAN. Only these get queues, since with one
// above as well, packets would be delayed twice.
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

// longest is a little more than the longest that a packet may have to wait.
const longest = 2500 * time.Millisecond

// Drain waits until all Controllers' queues are empty, or until packets that were in there when it was
// called must have left. From then on, every packet on its way out has passed the programs as they
// were configured before the call.
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

// Restore removes the pair and the queues of all Keepers, which the kernel replaces by its own, and
// returns the names of the devices.
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
