package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// ipvsDevice is where kube-proxy in mode ipvs puts the address of every Service. They are not the node's, and may
	// still be there when it was replaced.
	ipvsDevice = "kube-ipvs0"

	// addrsRetry is how long a subscription that broke waits before the next.
	addrsRetry = time.Second
)

// NodeAddrs returns the addresses of this network namespace and the index of the interface that each is on. Those that
// mean something else elsewhere are left out: loopback, which the programs know, and link-local ones.
func NodeAddrs() (map[netip.Addr]uint32, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if errors.Is(err, netlink.ErrDumpInterrupted) { // it changed meanwhile, and so is listed again
		list, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	ipvs := -1
	if device, err := netlink.LinkByName(ipvsDevice); err == nil {
		ipvs = device.Attrs().Index
	} else if !errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, fmt.Errorf("look for %s: %w", ipvsDevice, err)
	}
	addrs := map[netip.Addr]uint32{}
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast() && addr.Is6() || a.LinkIndex == ipvs {
			continue
		}
		addrs[addr] = uint32(a.LinkIndex)
	}
	return addrs, nil
}

// WatchAddrs keeps what the programs know of the node's addresses in step with its interfaces until the context ends, and
// calls changed with all of them at the start and whenever they differ. It is level-triggered: an event says that
// something changed, and what, a new list says.
func (d *Datapath) WatchAddrs(ctx context.Context, changed func(map[netip.Addr]uint32)) error {
	for {
		err := d.followAddrs(ctx, changed)
		if ctx.Err() != nil {
			return nil
		}
		d.log.Warn("following the node's addresses: trying again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(addrsRetry):
		}
	}
}

// followAddrs follows the addresses until the context ends or the subscription breaks.
func (d *Datapath) followAddrs(ctx context.Context, changed func(map[netip.Addr]uint32)) error {
	done := make(chan struct{})
	defer close(done)
	updates := make(chan netlink.AddrUpdate, 256)
	broken := make(chan error, 1)
	err := netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case broken <- err:
			default: // the first says enough
			}
		},
		ReceiveBufferSize: 1 << 20,
	})
	if err != nil {
		return fmt.Errorf("subscribe to the node's addresses: %w", err)
	}
	for {
		if err := d.syncAddrs(changed); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			if errors.Is(err, unix.ENOBUFS) { // events were lost; the next list has what they said
				continue
			}
			return err
		case _, open := <-updates:
			if !open {
				return errors.New("the subscription to the node's addresses ended")
			}
			for len(updates) > 0 {
				<-updates
			}
		}
	}
}

func (d *Datapath) syncAddrs(changed func(map[netip.Addr]uint32)) error {
	addrs, err := NodeAddrs()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("write the node's addresses: %w", ErrNoMaps)
	}
	if _, err := d.maps.SetNodeAddrs(addrs); err != nil {
		return err
	}
	changed(addrs)
	return nil
}
