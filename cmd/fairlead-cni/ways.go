package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownTables is where the numbers of tables begin that are for an interface alone; its index is added, which is no other's.
const ownTables = 1000

// gatewayOf returns who is asked for everybody else. It is nobody's address: what is sent there goes to the other end of the device.
func gatewayOf(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 1, 1})
	}
	return netip.MustParseAddr("fe80::1")
}

// leadOut makes the other end of an interface, which has that MAC, the way out for what has an address of the interface; for all that the pod sends,
// unless another of its interfaces is that already: whoever asked by that one has to be answered by it, under its address.
func (s *sandbox) leadOut(index int, addr netip.Addr, mac net.HardwareAddr) error {
	taken, err := s.leadsOut(index, addr.Is4())
	if err != nil || !taken {
		return errors.Join(err, s.route(index, addr.Is4(), mac, unix.RT_TABLE_MAIN))
	}
	table := ownTables + index
	if err := s.route(index, addr.Is4(), mac, table); err != nil {
		return err
	}
	s.tables[addr.Is4()] = table
	rule := netlink.NewRule()
	rule.Family, rule.Src, rule.Table = familyOf(addr.Is4()), whole(addr), table
	if err := s.handle.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add rule: %w", err)
	}
	return nil
}

// leadsOut reports whether another interface than this is the pod's way out.
func (s *sandbox) leadsOut(index int, is4 bool) (bool, error) {
	routes, err := s.handle.RouteList(nil, familyOf(is4))
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return r.LinkIndex != index && (r.Dst == nil || r.Dst.String() == everything(is4).String())
	}), nil
}

// route makes the gateway that of a table for everything. Nobody answers for its address, so who has it is told to the kernel.
func (s *sandbox) route(index int, is4 bool, mac net.HardwareAddr, table int) error {
	gateway := gatewayOf(is4)
	if err := s.handle.NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: familyOf(is4), State: unix.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: gateway.AsSlice(), HardwareAddr: mac,
	}); err != nil {
		return err
	}
	if is4 {
		to := &netlink.Route{LinkIndex: index, Dst: whole(gateway), Scope: netlink.SCOPE_LINK, Table: table}
		if err := s.handle.RouteReplace(to); err != nil {
			return err
		}
	}
	return s.handle.RouteReplace(&netlink.Route{
		LinkIndex: index, Dst: everything(is4), Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Table: table,
	})
}

// routesBy returns the routes by an interface, of all tables.
func (s *sandbox) routesBy(link netlink.Link) ([]netlink.Route, error) {
	by := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_UNSPEC}
	return s.handle.RouteListFiltered(netlink.FAMILY_ALL, by, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
}

func familyOf(is4 bool) int {
	if is4 {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// everything is the network of all addresses.
func everything(is4 bool) *net.IPNet {
	size := map[bool]int{true: net.IPv4len, false: net.IPv6len}[is4]
	return &net.IPNet{IP: make(net.IP, size), Mask: net.CIDRMask(0, 8*size)}
}

// whole is the network of one address.
func whole(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}
