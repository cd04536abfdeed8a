package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// ipvsDevice is where kube-proxy in mode ipvs puts the address of every Service. These are not the
// node's own, and may still be there after kube-proxy was replaced.
const ipvsDevice = "kube-ipvs0"

// Local is what the addresses of a network namespace's interfaces say.
type Local struct {
	Addrs map[netip.Addr]uint32 // with the indexes of their interfaces
	// Broadcasts are the addresses to which all hosts of an interface's network listen, or all its
	// routers: the last and the first of IPv4, the first of IPv6.
	Broadcasts map[netip.Addr]struct{}
}

// NodeAddrs returns the addresses of this network namespace. It leaves out addresses that mean
// something else on other nodes: loopback addresses, which the programs know, and link-local ones.
func NodeAddrs() (*Local, error) {
	list, err := devices.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	ipvs := -1
	if device, err := netlink.LinkByName(ipvsDevice); err == nil {
		ipvs = device.Attrs().Index
	} else if !errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, fmt.Errorf("look for %s: %w", ipvsDevice, err)
	}
	local := &Local{Addrs: map[netip.Addr]uint32{}, Broadcasts: map[netip.Addr]struct{}{}}
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast() && addr.Is6() || a.LinkIndex == ipvs {
			continue
		}
		local.Addrs[addr] = uint32(a.LinkIndex)
		local.addBroadcasts(addr, a.Mask)
	}
	return local, nil
}

func (l *Local) addBroadcasts(addr netip.Addr, mask net.IPMask) {
	ones, _ := mask.Size()
	if addr.BitLen()-ones < 2 { // one host, or the two ends of a link
		return
	}
	first := netip.PrefixFrom(addr, ones).Masked().Addr()
	l.Broadcasts[first] = struct{}{}
	if !addr.Is4() {
		return
	}
	last := first.As4()
	for i := range last {
		last[i] |= ^mask[i]
	}
	l.Broadcasts[netip.AddrFrom4(last)] = struct{}{}
}

// Watch keeps the devices that have programs, and the map of the node's addresses, in step with the
// node's interfaces until the context ends. It looks whenever something may have changed and
// whenever again receives, and calls changed with all addresses after each look.
func (d *deviceLinks) Watch(ctx context.Context, again <-chan struct{}, changed func(*Local)) error {
	return devices.Watch(ctx, d.log, d.packets.IsPod, again, func() error { return d.scanAddresses(changed) })
}

// scanAddresses reads the devices and addresses and brings programs and maps in step with them.
func (d *deviceLinks) scanAddresses(changed func(*Local)) error {
	d.outside.looking.Lock()
	defer d.outside.looking.Unlock()
	own := d.packets.Own()
	found, tunnel, err := d.detect(own)
	if err != nil {
		return err
	}
	local, err := NodeAddrs() // after the devices, so that it includes the address that backends see
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("write the node's addresses: %w", ErrNoMaps)
	}
	if err := d.writeAddrs(local.Addrs, own, found); err != nil {
		return err
	}
	d.outside.found, d.outside.tunnel, d.outside.scanned = found, tunnel, true
	changed(local)
	return d.syncDevices()
}

// AttachTunnel attaches the programs to the tunnel's device, which exists by now. Until the next
// look, the node's other devices keep what they have.
func (d *deviceLinks) AttachTunnel() error {
	d.outside.looking.Lock()
	defer d.outside.looking.Unlock()
	tunnel, err := devices.FindTunnel(d.packets.Tunnel)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("attach programs to %s: %w", d.packets.Tunnel, ErrNoMaps)
	}
	d.outside.tunnel = tunnel
	err = d.syncDevices()
	for _, state := range d.hooks.States() {
		if state.Index == tunnel.Index && state.TC != "" {
			return err
		}
		if state.Index == tunnel.Index {
			err = errors.Join(err, state.Err)
		}
	}
	return errors.Join(fmt.Errorf("no program is attached to %s", d.packets.Tunnel), err)
}

// detect returns the devices that lead out of the node, and the tunnel unless it is one of them.
// The tunnel's index is 0 while it does not exist.
func (d *deviceLinks) detect(own []netip.Addr) (found []devices.Device, tunnel devices.Device, err error) {
	found, err = devices.Detect(d.packets.Devices, own)
	if err == nil && d.packets.Tunnel != "" {
		tunnel, err = devices.FindTunnel(d.packets.Tunnel)
	}
	return found, tunnel, err
}

// writeAddrs writes the node's addresses to the maps, and then those that backends on other nodes
// see, since they have to be the node's before they are used.
func (d *deviceLinks) writeAddrs(addrs map[netip.Addr]uint32, own []netip.Addr, found []devices.Device) error {
	first := primaryOf(addrs, own, found)
	rows := map[netip.Addr]maps.NodeAddr{}
	for addr, ifindex := range addrs {
		row := maps.NodeAddr{Ifindex: ifindex}
		if d.packets.NodePorts.has(addr, first) {
			row.Flags = maps.NodePorts
		}
		rows[addr] = row
	}
	if _, err := d.maps.SetNodeAddrs(rows); err != nil {
		return err
	}
	for i, unspecified := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		addr := first[i]
		if !addr.IsValid() {
			addr = unspecified
		}
		if err := d.maps.SetSnatAddr(addr); err != nil {
			return err
		}
	}
	if d.outside.primary != first {
		d.log.Info("set the addresses that backends on other nodes see", "ipv4", first[0], "ipv6", first[1])
	}
	d.outside.primary = first
	d.outside.unknown = nil
	for _, addr := range own {
		known := slices.ContainsFunc(first[:], func(of netip.Addr) bool {
			return of.Is4() == addr.Is4() && slices.Contains(own, of)
		})
		if !known {
			d.outside.unknown = append(d.outside.unknown, addr)
		}
	}
	return nil
}

// writeTunnel writes the tunnel's device and the addresses that backends reached through it see:
// none before the tunnel has programs to handle the replies.
func (d *deviceLinks) writeTunnel(isAttached bool) error {
	tunnel := d.outside.tunnel
	if !isAttached || !tunnel.Addr4.IsValid() {
		tunnel.Addr4 = netip.IPv4Unspecified()
	}
	if !isAttached || !tunnel.Addr6.IsValid() {
		tunnel.Addr6 = netip.IPv6Unspecified()
	}
	return errors.Join(d.maps.SetTunnel(uint32(tunnel.Index)), d.maps.SetTunnelAddr(tunnel.Addr4), d.maps.SetTunnelAddr(tunnel.Addr6))
}

// primary is the node's first IPv4 and IPv6 address; one that it lacks is not valid.
type primary [2]netip.Addr

// primaryOf returns the addresses by which others know the node, if the node has them; otherwise
// those of the device with the default route, or of the first device that has programs.
func primaryOf(addrs map[netip.Addr]uint32, own []netip.Addr, found []devices.Device) (first primary) {
	propose := func(addr netip.Addr) {
		if _, ok := addrs[addr]; !ok {
			return
		}
		if at := &first[map[bool]int{true: 0, false: 1}[addr.Is4()]]; !at.IsValid() {
			*at = addr
		}
	}
	for _, addr := range own {
		propose(addr)
	}
	for _, d := range found {
		if d.Default4 {
			propose(d.Addr4)
		}
		if d.Default6 {
			propose(d.Addr6)
		}
	}
	for _, d := range found {
		propose(d.Addr4)
		propose(d.Addr6)
	}
	return first
}
