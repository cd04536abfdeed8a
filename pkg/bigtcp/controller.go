// Package bigtcp lets TCP packets within the node be larger than 64 KiB, if its kernel and its
// devices can. It restores the devices once they are no longer to be raised.
package bigtcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

// Config is what a Controller needs.
type Config struct {
	Dir string // for the file with the devices' earlier limits
	// Devices returns the devices that lead out of the node.
	Devices func() []devices.Device
	// IsPod reports whether a device with this name is a pod's. Changes of those are ignored.
	IsPod func(name string) bool
	// Why4 and Why6 say why a family keeps its usual sizes whatever the devices take; empty if it
	// does not have to.
	Why4, Why6 string
	Log        *slog.Logger
}

// Controller raises the limits of the devices that lead out of the node to what all of them take.
type Controller struct {
	cfg Config

	mu     sync.Mutex
	status Status
}

// New returns a Controller that knows the sizes and has applied them, as far as it could.
func New(cfg Config) *Controller {
	k := &Controller{cfg: cfg}
	k.update()
	return k
}

// Run keeps the sizes right until the context ends.
func (k *Controller) Run(ctx context.Context) error {
	return devices.Watch(ctx, k.cfg.Log, k.cfg.IsPod, nil, func() error { k.update(); return nil })
}

// Status returns what the last look found.
func (k *Controller) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// update applies the sizes to the right devices and to no others, and records the result.
func (k *Controller) update() {
	now, err := k.set()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		now.Error = err.Error()
		if now.Error != k.status.Error {
			k.cfg.Log.Warn("cannot set the largest TCP packets of devices, trying again", "error", err)
		}
	}
	k.status = now
}

func (k *Controller) set() (Status, error) {
	links, chosen, now, err := k.find()
	if err != nil {
		return now, err
	}
	return now, k.apply(links, chosen, now.Sizes())
}

// Find returns the sizes that a Controller with this Config would set, without setting anything.
func Find(cfg Config) (Status, error) {
	_, _, now, err := (&Controller{cfg: cfg}).find()
	return now, err
}

func (k *Controller) find() (links, chosen []netlink.Link, now Status, err error) {
	if links, err = devices.Dump(netlink.LinkList); err != nil {
		return nil, nil, Status{}, fmt.Errorf("list the node's devices: %w", err)
	}
	var indexes []int
	for _, d := range k.cfg.Devices() {
		indexes = append(indexes, d.Index)
	}
	chosen = withParts(links, indexes)
	now = k.sizesOf(links, chosen)
	for _, link := range chosen {
		now.Devices = append(now.Devices, link.Attrs().Name)
	}
	return links, chosen, now, nil
}

// withParts returns the devices with these indexes and those below them: the ports of a bond or a
// bridge, and the device below a VLAN. That is where packets are segmented and merged.
func withParts(links []netlink.Link, indexes []int) []netlink.Link {
	var all []netlink.Link
	for len(indexes) > 0 {
		var parts []int
		for _, link := range links {
			at := link.Attrs()
			if !slices.Contains(indexes, at.Index) || slices.Contains(all, link) {
				continue
			}
			all = append(all, link)
			if link.Type() == "vlan" {
				parts = append(parts, at.ParentIndex)
			}
			for _, part := range links {
				if part.Attrs().MasterIndex == at.Index {
					parts = append(parts, part.Attrs().Index)
				}
			}
		}
		indexes = parts
	}
	slices.SortFunc(all, func(a, b netlink.Link) int { return cmp.Compare(a.Attrs().Index, b.Attrs().Index) })
	return all
}

// sizesOf returns the largest sizes that all chosen devices take, which pods' devices get too. A
// packet that is too large for the next device is segmented in software, which costs more than
// large packets gain.
func (k *Controller) sizesOf(links, chosen []netlink.Link) Status {
	size := func(is4 bool, why string) (int, string) {
		if why != "" {
			return 0, why
		}
		least := most
		for _, link := range chosen {
			takes, why := takes(link, is4)
			if why != "" {
				return 0, why
			}
			least = min(least, takes)
		}
		if len(chosen) == 0 { // without devices, any one tells what the kernel can; there is always lo
			return takes(links[0], is4)
		}
		return least, ""
	}
	var s Status
	s.V4, s.Why4 = size(true, k.cfg.Why4)
	s.V6, s.Why6 = size(false, k.cfg.Why6)
	return s
}

// apply gives the chosen devices the sizes, and all others their earlier limits.
func (k *Controller) apply(links, chosen []netlink.Link, sizes Sizes) error {
	noted, err := readNotes(k.cfg.Dir)
	if err != nil {
		return err
	}
	before := maps.Clone(noted)
	var raised, others []netlink.Link
	for _, link := range links {
		at := link.Attrs()
		was := limitsOf(at)
		if n, there := noted[at.Name]; there && n.Index == at.Index {
			was = n.Was
		}
		if is := was.raised(sizes); slices.Contains(chosen, link) && is != was {
			noted[at.Name] = note{at.Index, was, is}
			raised = append(raised, link)
		} else {
			others = append(others, link)
		}
	}
	if err := noted.replace(k.cfg.Dir, before); err != nil { // before the devices are changed
		return err
	}
	if len(noted) == 0 {
		return nil
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink socket: %w", err)
	}
	defer handle.Close()
	var errs []error
	for _, link := range raised {
		errs = append(errs, noted[link.Attrs().Name].Is.set(handle, link))
	}
	_, err = noted.putBack(handle, others)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	return noted.of(raised).replace(k.cfg.Dir, noted)
}
