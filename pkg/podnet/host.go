package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/devices"
)

// endpoint is the node's end of a pod's device, in the node's network namespace.
type endpoint struct {
	index int
	name  string
	alias string
	mac   string
	kind  cni.Kind
	addrs []netip.Addr // routed to this device
}

// links returns the names of all devices by index, and the pods' devices by name.
func links() (names map[int]string, pods map[string]*endpoint, err error) {
	all, err := devices.Dump(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list devices: %w", err)
	}
	names, pods = make(map[int]string, len(all)), map[string]*endpoint{}
	for _, link := range all {
		at := link.Attrs()
		names[at.Index] = at.Name
		if cni.IsDevice(at.Name) && cni.IsKind(link.Type()) {
			pods[at.Name] = &endpoint{index: at.Index, name: at.Name, alias: at.Alias, mac: at.HardwareAddr.String(), kind: cni.Kind(link.Type())}
		}
	}
	return names, pods, nil
}

// mainRoutes returns the routes of the main table.
func mainRoutes() ([]netlink.Route, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	routes, err := devices.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// hostRoutes returns the index of the device that each host route leads to.
func hostRoutes() (map[netip.Addr]int, error) {
	routes, err := mainRoutes()
	return singles(routes), err
}

func singles(routes []netlink.Route) map[netip.Addr]int {
	leads := map[netip.Addr]int{}
	for i := range routes {
		if addr, ok := single(routes[i].Dst); ok {
			leads[addr] = routes[i].LinkIndex
		}
	}
	return leads
}

// single returns the address of a network that consists of one address.
func single(dst *net.IPNet) (netip.Addr, bool) {
	if dst == nil {
		return netip.Addr{}, false
	}
	addr, ok := netip.AddrFromSlice(dst.IP)
	ones, bits := dst.Mask.Size()
	return addr.Unmap(), ok && ones == bits
}

// hostNeighbors returns the set of permanent neighbors.
func hostNeighbors() (map[neighbor]bool, error) {
	list, err := devices.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbors: %w", err)
	}
	known := map[neighbor]bool{}
	for i := range list {
		if addr, ok := netip.AddrFromSlice(list[i].IP); ok && list[i].State&unix.NUD_PERMANENT != 0 {
			known[neighbor{list[i].LinkIndex, addr.Unmap(), list[i].HardwareAddr.String()}] = true
		}
	}
	return known, nil
}

type neighbor struct {
	index int
	addr  netip.Addr
	mac   string
}

// setUp sets the node's end of a pod's device up. The kernel has no routes to a device that is down.
func setUp(to *netlink.Handle, device *cni.Device) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: device.Index, Name: device.Name}}
	if err := to.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up device %s: %w", device.Name, err)
	}
	return nil
}

// lead routes an address to a device and adds a permanent neighbor, so that the kernel need not
// resolve the address.
func lead(to *netlink.Handle, addr netip.Addr, index int, mac string) error {
	hardware, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	dst := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
	if err := setNeighbor(to, addr, index, hardware); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: index, Dst: dst, Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_STATIC}
	if err := to.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s: %w", addr, err)
	}
	return nil
}

func setNeighbor(to *netlink.Handle, addr netip.Addr, index int, mac net.HardwareAddr) error {
	family := netlink.FAMILY_V6
	if addr.Is4() {
		family = netlink.FAMILY_V4
	}
	entry := &netlink.Neigh{
		LinkIndex: index, Family: family, State: unix.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: addr.AsSlice(), HardwareAddr: mac,
	}
	if err := to.NeighSet(entry); err != nil {
		return fmt.Errorf("add neighbor %s: %w", addr, err)
	}
	return nil
}

// HasNetkit returns an error if the kernel has no netkit devices. It tries to create one with an
// invalid mode: a kernel that knows netkit rejects the mode, one that does not rejects the kind,
// and neither creates a device.
func HasNetkit() error {
	err := netlink.LinkAdd(&netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "netkit-trial"}, Mode: 255})
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) {
		return nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return errors.New("this kernel has no netkit: that needs Linux 6.7 or newer with CONFIG_NETKIT")
	}
	return fmt.Errorf("find out whether the kernel has netkit: %w", err)
}

// removeLink removes a pod's device, and with it the pod's end and all routes to it. It is no error
// if the device is gone.
func removeLink(name string) error {
	if !cni.IsDevice(name) {
		return fmt.Errorf("remove device %.32q: this is not the name of a pod's device", name)
	}
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil && !cni.IsKind(link.Type()) {
		return fmt.Errorf("remove device %s: it is a %s, not a pod's device", name, link.Type())
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}

// Settings are the kernel settings of the node's end of a pod's device. rp_filter is off because
// the agent checks source addresses by other means, and accept_ra because only the node sends
// router advertisements there.
func Settings() []cni.Setting {
	return []cni.Setting{
		{Family: "ipv4", Key: "rp_filter", Value: "0"}, {Family: "ipv4", Key: "forwarding", Value: "1"},
		{Family: "ipv6", Key: "accept_ra", Value: "0"}, {Family: "ipv6", Key: "accept_dad", Value: "0"},
		{Family: "ipv6", Key: "forwarding", Value: "1"},
	}
}

// defaultMTU is that of Ethernet.
const defaultMTU = 1500

// DefaultMTU returns the smallest MTU of the devices that have a default route, or Ethernet's if
// none has one.
func DefaultMTU() (int, error) {
	routes, err := mainRoutes()
	if err != nil {
		return 0, err
	}
	least := 0
	for i := range routes {
		if dst := routes[i].Dst; dst != nil {
			if ones, _ := dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		indexes := []int{routes[i].LinkIndex}
		for _, hop := range routes[i].MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			link, err := netlink.LinkByIndex(index)
			if err != nil {
				continue // the route has no device, as an unreachable route, or the device is gone by now
			}
			if mtu := link.Attrs().MTU; least == 0 || mtu < least {
				least = mtu
			}
		}
	}
	if least == 0 {
		return defaultMTU, nil
	}
	return least, nil
}
