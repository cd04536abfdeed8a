// Package devices finds the devices by which packets from outside reach the node, follows them as they come, go and
// change, and keeps programs attached to them. Which programs those are is decided by whoever loads them.
package devices

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/listing"
)

// Device is a device that is chosen.
type Device struct {
	Index    int
	Name     string
	Kind     string // "device" for one of a driver of hardware, otherwise what it was made as: bond, vlan, veth
	MTU      int
	MAC      [6]byte // zero if it has none of this length
	Why      string  // it is chosen
	Default4 bool    // it has the default route of IPv4
	Default6 bool
	VLANs    bool       // devices of VLANs sit on it
	Pod      bool       // it is the host's end of a pod's
	Loopback bool       // it is the node's loopback device
	Pair     bool       // what is kept to a rate and stays on the node comes out of it
	Netkit   bool       // it is a netkit
	Tunnel   bool       // it leads to the pods of other nodes
	Addr4    netip.Addr // its first address that is for everybody; not valid if it has none
	Addr6    netip.Addr
}

// inside reports whether nothing comes in there from outside of the node.
func (d *Device) inside() bool { return d.Pod || d.Loopback || d.Pair }

// candidate is a device that may be chosen.
type candidate struct {
	Device
	loopback, ethernet bool
	master, lower      int
	addrs              []netip.Addr
}

// Detect returns the devices of this network namespace that the filter and what is known of the node choose. Own are the
// addresses by which the node is known to others, if they are known.
func Detect(filter Filter, own []netip.Addr) ([]Device, error) {
	if filter.none {
		return nil, nil
	}
	candidates, err := list()
	if err != nil {
		return nil, err
	}
	return filter.choose(candidates, own), nil
}

// FindTunnel returns the device of that name, through which packets reach the pods of other nodes; its index is 0 if there
// is none yet. Its addresses are such that the kernel speaks from them to nobody else, and stand for it all the same.
func FindTunnel(name string) (Device, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return Device{}, nil
	}
	if err != nil {
		return Device{}, fmt.Errorf("look for %s: %w", name, err)
	}
	addrs, err := listing.Of(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return Device{}, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	c := candidateOf(link)
	for i := range addrs {
		addrs[i].Flags = 0
	}
	c.addAddrs(addrs)
	c.Tunnel, c.Why = true, "it leads to the pods of other nodes"
	return c.Device, nil
}

func list() ([]candidate, error) {
	links, err := listing.Of(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the node's devices: %w", err)
	}
	addrs, err := listing.Of(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	byLink := map[int][]netlink.Addr{}
	for _, a := range addrs {
		byLink[a.LinkIndex] = append(byLink[a.LinkIndex], a)
	}
	candidates := make([]candidate, 0, len(links))
	vlans := map[int]bool{}
	for _, l := range links {
		c := candidateOf(l)
		c.addAddrs(byLink[c.Index])
		if c.Kind == "vlan" {
			vlans[c.lower] = true
		}
		candidates = append(candidates, c)
	}
	v4, err := defaults(netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	v6, err := defaults(netlink.FAMILY_V6)
	if err != nil {
		return nil, err
	}
	for i := range candidates {
		c := &candidates[i]
		c.Default4, c.Default6, c.VLANs = v4[c.Index], v6[c.Index], vlans[c.Index]
	}
	return candidates, nil
}

func candidateOf(l netlink.Link) candidate {
	attrs := l.Attrs()
	c := candidate{
		Device:   Device{Index: attrs.Index, Name: attrs.Name, Kind: l.Type(), MTU: attrs.MTU},
		loopback: attrs.Flags&net.FlagLoopback != 0,
		ethernet: attrs.EncapType == "ether",
		master:   attrs.MasterIndex,
		lower:    attrs.ParentIndex,
	}
	if len(attrs.HardwareAddr) == len(c.MAC) {
		c.MAC = [6]byte(attrs.HardwareAddr)
	}
	return c
}

// addAddrs fills in the addresses. Those that the kernel itself would not choose to speak from do not stand for the
// device.
func (c *candidate) addAddrs(list []netlink.Addr) {
	const lesser = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE // secondary is temporary, of IPv6
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if !ok || addr.IsLinkLocalUnicast() || addr.IsLoopback() {
			continue
		}
		c.addrs = append(c.addrs, addr)
		first := &c.Addr6
		if addr.Is4() {
			first = &c.Addr4
		}
		if !first.IsValid() && a.Flags&lesser == 0 {
			*first = addr
		}
	}
}

// defaults returns the indexes of the devices that have a default route.
func defaults(family int) (map[int]bool, error) {
	routes, err := listing.Of(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	})
	if err != nil {
		return nil, fmt.Errorf("list the node's routes: %w", err)
	}
	found := map[int]bool{}
	for _, r := range routes {
		if !isDefault(r.Dst) {
			continue
		}
		if r.LinkIndex > 0 {
			found[r.LinkIndex] = true
		}
		for _, hop := range r.MultiPath {
			found[hop.LinkIndex] = true
		}
	}
	return found, nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0 && dst.IP.IsUnspecified()
}
