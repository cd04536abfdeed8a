package topology

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// Port is the end of a wire in a host.
type Port struct {
	Host  *Host
	Peer  *Port
	Name  string
	Index int // index of the interface in its namespace
	MAC   net.HardwareAddr

	addrs map[Family]netip.Prefix
}

// Addr returns the address of the port.
func (p *Port) Addr(family Family) netip.Addr { return p.addrs[family].Addr() }

// Prefix returns the address of the port with the prefix length of the wire's network.
func (p *Port) Prefix(family Family) netip.Prefix { return p.addrs[family] }

// connect adds a wire between two hosts. Wire n has 10.n.n.0/24 and fd00:0:0:n::/64, n being a
// 16-bit number.
func (t *Topology) connect(a, b *Host) error {
	wire := t.wires
	if t.wires++; wire > 0xffff {
		return fmt.Errorf("connect %s and %s: there are %d wires already", a, b, wire)
	}
	ports := make([]*Port, 2)
	for i, host := range []*Host{a, b} {
		ports[i] = newPort(host, wire, i+1)
	}
	ports[0].Peer, ports[1].Peer = ports[1], ports[0]
	if err := rig.ConnectVeth(a.Netns, ports[0].Name, b.Netns, ports[1].Name); err != nil {
		return err
	}
	for _, port := range ports {
		if err := port.configure(t.knobs); err != nil {
			return fmt.Errorf("configure %s in %s: %w", port.Name, port.Host, err)
		}
		port.Host.Ports = append(port.Host.Ports, port)
	}
	return nil
}

func newPort(host *Host, wire, end int) *Port {
	high, low := byte(wire>>8), byte(wire)
	v6 := netip.AddrFrom16([16]byte{0: 0xfd, 6: high, 7: low, 15: byte(end)})
	return &Port{
		Host: host, Name: fmt.Sprintf("eth%d", len(host.Ports)),
		MAC: net.HardwareAddr{2, 0, 0, high, low, byte(end)},
		addrs: map[Family]netip.Prefix{
			IPv4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, high, low, byte(end)}), 24),
			IPv6: netip.PrefixFrom(v6, 64),
		},
	}
}

func (p *Port) configure(knobs Knobs) error {
	handle, err := netlink.NewHandleAt(netns.NsHandle(p.Host.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(p.Name)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	p.Index = link.Attrs().Index
	if err := handle.LinkSetHardwareAddr(link, p.MAC); err != nil {
		return fmt.Errorf("set hardware address: %w", err)
	}
	if knobs.MTU != 0 {
		if err := handle.LinkSetMTU(link, knobs.MTU); err != nil {
			return fmt.Errorf("set MTU %d: %w", knobs.MTU, err)
		}
	}
	for _, family := range []Family{IPv4, IPv6} {
		if err := p.Host.AddAddr(p.Name, p.addrs[family]); err != nil {
			return err
		}
		neighbor := &netlink.Neigh{
			LinkIndex: p.Index, State: netlink.NUD_PERMANENT,
			IP: p.Peer.Addr(family).AsSlice(), HardwareAddr: p.Peer.MAC,
		}
		if err := handle.NeighSet(neighbor); err != nil {
			return fmt.Errorf("add neighbor %s: %w", p.Peer.Addr(family), err)
		}
	}
	if knobs.Offloads == nil {
		return nil
	}
	return p.Host.Do(func() error { return setOffloads(p.Name, *knobs.Offloads) })
}

// routeAll adds default routes through a neighbor.
func (h *Host) routeAll(via *Host) error {
	for family, all := range map[Family]netip.Addr{IPv4: netip.IPv4Unspecified(), IPv6: netip.IPv6Unspecified()} {
		if err := h.AddRoute(netip.PrefixFrom(all, 0), h.Port(via).Peer.Addr(family)); err != nil {
			return err
		}
	}
	return nil
}

// route adds routes to a port's addresses through a neighbor.
func (h *Host) route(to *Port, via *Host) error {
	for _, family := range []Family{IPv4, IPv6} {
		if err := h.AddRoute(to.Prefix(family), h.Port(via).Peer.Addr(family)); err != nil {
			return err
		}
	}
	return nil
}
