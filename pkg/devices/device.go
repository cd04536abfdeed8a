// Package devices finds the devices through which packets from outside reach the node, follows them
// as they come, go and change, and keeps programs attached to them. The caller decides which
// programs those are.
package devices

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Device is a device that was chosen.
type Device struct {
	Index    int
	Name     string
	Kind     string // "device" if it has a hardware driver, otherwise its type: bond, vlan, veth
	MTU      int
	MAC      [6]byte // zero if its address has another length
	Why      string  // why it was chosen
	Default4 bool    // has the IPv4 default route
	Default6 bool
	VLANs    bool       // VLAN devices sit on it
	Pod      bool       // host end of a pod's device
	Loopback bool       // the node's loopback device
	Pair     bool       // delivers rate-limited packets that stay on the node
	Netkit   bool       // netkit device
	Tunnel   bool       // leads to the pods of other nodes
	Addr4    netip.Addr // first address of global scope; not valid if it has none
	Addr6    netip.Addr
}

// inside reports whether no packets from outside the node come in through the device.
func (d *Device) inside() bool { return d.Pod || d.Loopback || d.Pair }

// candidate is a device that may be chosen.
type candidate struct {
	Device
	loopback, ethernet bool
	master, lower      int
	addrs              []netip.Addr
}

// Detect returns the devices of this network namespace that the filter chooses. own are the node's
// addresses as others know them, if known.
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

// FindTunnel returns the device of that name, through which packets reach the pods of other nodes.
// Its Index is 0 if it does not exist yet. Its Addr4 and Addr6 are set although the kernel would
// not choose them as source addresses.
func FindTunnel(name string) (Device, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return Device{}, nil
	}
	if err != nil {
		return Device{}, fmt.Errorf("look for %s: %w", name, err)
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
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
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the node's devices: %w", err)
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
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

// addAddrs sets the addresses. Addr4 and Addr6 leave out those that the kernel would not choose as
// source addresses.
func (c *candidate) addAddrs(list []netlink.Addr) {
	// For IPv6, secondary means temporary.
	const lesser = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE
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
	routes, err := Dump(func() ([]netlink.Route, error) {
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
