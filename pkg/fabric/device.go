package fabric

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// DeviceName is the name of the tunnel's device.
	DeviceName = "flvxlan0"
	// Port is the one that Linux used before one was assigned. Firewalls of clusters know it, since
	// other tunnels use it too, and switches do not take its packets for a VXLAN of their own.
	Port = 8472
	// FirstPort and LastPort are the ports from which nodes send through the tunnel. Nothing else
	// on a node is given one, so that receivers know a packet that was only given a node's address.
	FirstPort, LastPort = 61000, 65535
)

// Overhead returns how many bytes the tunnel between nodes with such addresses adds to a packet.
func Overhead(addrs []netip.Addr) int {
	const inner, udp, vxlan, ipv4, ipv6 = 14, 8, 8, 20, 40
	if len(addrs) == 0 || slices.ContainsFunc(addrs, netip.Addr.Is6) {
		return inner + udp + vxlan + ipv6
	}
	return inner + udp + vxlan + ipv4
}

// macOf returns a node's MAC address in the tunnel. It differs for every node, since a node drops
// packets that come from its own.
func macOf(node string) (mac [6]byte) {
	sum := sha256.Sum256([]byte(node))
	copy(mac[1:], sum[:])
	mac[0] = 2 // locally administered
	return mac
}

// linkLocal returns an address for a node as the next hop of either family, whatever addresses it
// has.
func linkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// ownIn returns the tunnel device's address, from which the node itself sends to pods of other
// nodes: the first address of its pod network, which no pod has and to which answers return through
// the tunnel.
func ownIn(cidrs []netip.Prefix, is4 bool) netip.Addr {
	for _, cidr := range cidrs {
		if addr := cidr.Addr(); addr.Is4() == is4 && cidr.Bits() < addr.BitLen()-1 {
			return addr
		}
	}
	return netip.Addr{}
}

// ourDevice returns the tunnel's device, or nil if there is none.
func ourDevice() (*netlink.Vxlan, error) {
	link, err := netlink.LinkByName(DeviceName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", DeviceName, err)
	}
	device, ok := link.(*netlink.Vxlan)
	if !ok || !device.FlowBased {
		return nil, fmt.Errorf("device %s is not fairlead's tunnel: remove or rename it", DeviceName)
	}
	return device, nil
}

// setDevice creates or corrects the tunnel's device and returns its index. It calls guard before it
// sets the device up.
func setDevice(mac [6]byte, mtu int, cidrs []netip.Prefix, guard func() error) (int, error) {
	device, err := ourDevice()
	if err != nil {
		return 0, err
	}
	if device != nil && (device.Port != Port || device.PortLow != FirstPort || device.PortHigh != LastPort || device.Learning || device.HardwareAddr.String() != net.HardwareAddr(mac[:]).String()) {
		if err := removeDevice(); err != nil {
			return 0, err
		}
		device = nil
	}
	if device == nil {
		if device, err = addDevice(mac, mtu); err != nil {
			return 0, err
		}
	}
	if err := setKernel(device); err != nil {
		return 0, err
	}
	if device.MTU != mtu {
		if err := netlink.LinkSetMTU(device, mtu); err != nil {
			return 0, fmt.Errorf("set the MTU of %s to %d: %w", DeviceName, mtu, err)
		}
	}
	if device.RawFlags&unix.IFF_NOARP == 0 {
		if err := netlink.LinkSetARPOff(device); err != nil {
			return 0, fmt.Errorf("turn off ARP at %s: %w", DeviceName, err)
		}
	}
	if device.Flags&net.FlagUp == 0 {
		if err := guard(); err != nil {
			return 0, fmt.Errorf("leave %s down: %w", DeviceName, err)
		}
		if err := netlink.LinkSetUp(device); err != nil {
			return 0, fmt.Errorf("set %s up: %w", DeviceName, err)
		}
	}
	return device.Index, setAddresses(device, cidrs)
}

func addDevice(mac [6]byte, mtu int) (*netlink.Vxlan, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = DeviceName, mac[:], mtu
	if err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: Port, PortLow: FirstPort, PortHigh: LastPort}); err != nil {
		return nil, fmt.Errorf("add %s with UDP port %d: %w", DeviceName, Port, err)
	}
	device, err := ourDevice()
	if device == nil && err == nil {
		err = fmt.Errorf("add %s: it disappeared again", DeviceName)
	}
	return device, err
}

// The names of a device's settings in netlink.
const (
	inetConf          = 1 // IFLA_INET_CONF
	devconfForwarding = 1
	devconfRPFilter   = 8
	inet6AddrGenMode  = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenNone       = 1
)

// setKernel corrects the kernel's settings of the device. rp_filter has to be loose (2), since
// packets through the tunnel may come from a node's own address, which is routed elsewhere.
// setKernel uses netlink where it can, as an agent in an unprivileged container cannot write below
// /proc/sys. The other settings are right from the start if "fairlead init" has run and IPv6 is on.
func setKernel(device netlink.Link) error {
	inet := nl.NewRtAttr(unix.AF_INET, nil)
	conf := inet.AddRtAttr(inetConf, nil)
	conf.AddRtAttr(devconfForwarding, nl.Uint32Attr(1))
	conf.AddRtAttr(devconfRPFilter, nl.Uint32Attr(2))
	if err := setFamily(device, inet); err != nil {
		return fmt.Errorf("set forwarding and rp_filter of %s: %w", DeviceName, err)
	}
	dir := filepath.Join("/proc/sys/net/ipv6/conf", DeviceName)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel has no IPv6
	}
	inet6 := nl.NewRtAttr(unix.AF_INET6, nil)
	inet6.AddRtAttr(inet6AddrGenMode, nl.Uint8Attr(addrGenNone))
	if err := setFamily(device, inet6); err != nil {
		return fmt.Errorf("turn off automatic IPv6 addresses of %s: %w", DeviceName, err)
	}
	const initiated = "run \"fairlead init\", which makes it right for new devices"
	for _, setting := range []struct{ name, want, or, cure string }{
		// The next hops are IPv6 addresses, whatever families nodes and pods have.
		{"disable_ipv6", "0", "",
			fmt.Sprintf("this node turns IPv6 off on new devices: set net.ipv6.conf.%s.disable_ipv6=0, and "+
				"net.ipv6.conf.default.disable_ipv6=0 to keep it on after a reboot", DeviceName)},
		{"forwarding", "1", "", initiated}, {"accept_ra", "0", "1", initiated}, // 1: off while forwarding
	} {
		path := filepath.Join(dir, setting.name)
		text, err := os.ReadFile(path)
		if is := strings.TrimSpace(string(text)); err == nil && is != setting.want && is != setting.or {
			err = os.WriteFile(path, []byte(setting.want), 0)
		}
		if err != nil {
			return fmt.Errorf("set %s of %s: %w; %s", setting.name, DeviceName, err, setting.cure)
		}
	}
	return nil
}

// setFamily applies a family's settings to a device.
func setFamily(device netlink.Link, family *nl.RtAttr) error {
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(device.Attrs().Index)
	all := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	all.AddChild(family)
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	request.AddData(message)
	request.AddData(all)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// setAddresses gives the device the node's addresses in the tunnel, and no others. Link scope, and
// for IPv6 deprecation, keep the kernel from choosing them as source addresses by itself.
func setAddresses(device netlink.Link, cidrs []netip.Prefix) error {
	list, err := netlink.AddrList(device, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", DeviceName, err)
	}
	want := map[netip.Addr]bool{}
	for _, is4 := range []bool{true, false} {
		if addr := ownIn(cidrs, is4); addr.IsValid() {
			want[addr] = true
		}
	}
	for i := range list {
		addr, _ := netip.AddrFromSlice(list[i].IP)
		addr = addr.Unmap()
		if addr.IsLinkLocalUnicast() {
			continue
		}
		if want[addr] {
			delete(want, addr)
		} else if err := netlink.AddrDel(device, &list[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove the address %s of %s: %w", addr, DeviceName, err)
		}
	}
	for addr := range want {
		entry := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}, Scope: unix.RT_SCOPE_LINK}
		if addr.Is6() {
			entry.Scope, entry.Flags, entry.ValidLft = unix.RT_SCOPE_UNIVERSE, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE, forever
		}
		if err := netlink.AddrReplace(device, entry); err != nil {
			return fmt.Errorf("give %s the address %s: %w", DeviceName, addr, err)
		}
	}
	return nil
}

// forever is the kernel's value for an infinite lifetime.
const forever = 1<<32 - 1

// removeDevice removes the tunnel's device. It is no error if there is none.
func removeDevice() error {
	device, err := ourDevice()
	if device == nil || err != nil {
		return err
	}
	if err := netlink.LinkDel(device); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", DeviceName, err)
	}
	return nil
}
