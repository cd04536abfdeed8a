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

const (
	// ownTables is the base of the numbers of tables for single interfaces. The index of the
	// interface is added to it.
	ownTables = 1000
	// ownRules is the priority of the rules that select these tables.
	ownRules = 1000
	// spareMetric is the metric of a default route for sockets that are bound to an interface but
	// have no source address yet. All others prefer a route with a better metric.
	spareMetric = 4096
)

// gatewayOf returns the pod's gateway. No device has that address: a permanent neighbor makes it
// the node's end of the pod's device.
func gatewayOf(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 1, 1})
	}
	return netip.MustParseAddr("fe80::1")
}

// setGateway makes the node's end of an interface, which has the given MAC, the pod's default gateway.
// If another interface of the pod has that role already, only packets from addr use it: a client
// that connects through an interface has to be answered through it, from its address.
func (s *sandbox) setGateway(index int, addr netip.Addr, mac net.HardwareAddr) error {
	taken, err := s.hasOtherGateway(index, addr.Is4())
	if err != nil || !taken {
		return errors.Join(err, s.route(netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN}, addr.Is4(), mac))
	}
	table := ownTables + index
	for _, to := range []netlink.Route{
		{LinkIndex: index, Table: table}, {LinkIndex: index, Table: unix.RT_TABLE_MAIN, Priority: spareMetric},
	} {
		if err := s.route(to, addr.Is4(), mac); err != nil {
			return err
		}
	}
	s.tables[addr.Is4()] = table
	return s.rule(addr, table)
}

// rule makes packets from an address use a table. It also deletes the rules of interfaces that are
// gone: the kernel keeps those, though their tables are empty.
func (s *sandbox) rule(addr netip.Addr, table int) error {
	rules, err := s.handle.RuleList(familyOf(addr.Is4()))
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		if r.Priority != ownRules || r.Table <= ownTables {
			continue
		}
		var gone netlink.LinkNotFoundError
		if _, err := s.handle.LinkByIndex(r.Table - ownTables); !errors.As(err, &gone) {
			continue
		}
		if err := s.handle.RuleDel(&r); err != nil {
			return fmt.Errorf("delete rule of an interface that is gone: %w", err)
		}
	}
	own := netlink.NewRule()
	own.Family, own.Src, own.Table, own.Priority = familyOf(addr.Is4()), whole(addr), table, ownRules
	if err := s.handle.RuleAdd(own); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add rule: %w", err)
	}
	return nil
}

// leavesBy reports whether packets from an address of an interface leave through it.
func (s *sandbox) leavesBy(link netlink.Link, addr netip.Addr) (bool, error) {
	routes, err := s.routesBy(link)
	if err != nil {
		return false, err
	}
	rules, err := s.handle.RuleList(familyOf(addr.Is4()))
	if err != nil {
		return false, fmt.Errorf("list rules: %w", err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		if !r.Gw.Equal(gatewayOf(addr.Is4()).AsSlice()) || r.Priority == spareMetric {
			return false
		}
		return r.Table == unix.RT_TABLE_MAIN || slices.ContainsFunc(rules, func(rule netlink.Rule) bool {
			return rule.Table == r.Table && rule.Src != nil && rule.Src.String() == whole(addr).String()
		})
	}), nil
}

// hasOtherGateway reports whether an interface other than this has the pod's default route.
func (s *sandbox) hasOtherGateway(index int, is4 bool) (bool, error) {
	routes, err := s.handle.RouteList(nil, familyOf(is4))
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return r.LinkIndex != index && r.Priority != spareMetric && (r.Dst == nil || r.Dst.String() == everything(is4).String())
	}), nil
}

// route adds the default route via the gateway to a table. Nothing answers for the gateway's
// address, so route adds a permanent neighbor for it.
func (s *sandbox) route(to netlink.Route, is4 bool, mac net.HardwareAddr) error {
	gateway := gatewayOf(is4)
	if err := s.handle.NeighSet(&netlink.Neigh{
		LinkIndex: to.LinkIndex, Family: familyOf(is4), State: unix.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: gateway.AsSlice(), HardwareAddr: mac,
	}); err != nil {
		return err
	}
	if is4 {
		near := to
		near.Dst, near.Scope = whole(gateway), netlink.SCOPE_LINK
		if err := s.handle.RouteReplace(&near); err != nil {
			return err
		}
	}
	to.Dst, to.Gw, to.Flags = everything(is4), gateway.AsSlice(), int(netlink.FLAG_ONLINK)
	return s.handle.RouteReplace(&to)
}

// routesBy returns the routes through an interface, in all tables.
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

// everything returns the prefix of all addresses.
func everything(is4 bool) *net.IPNet {
	size := map[bool]int{true: net.IPv4len, false: net.IPv6len}[is4]
	return &net.IPNet{IP: make(net.IP, size), Mask: net.CIDRMask(0, 8*size)}
}

// whole returns the prefix of a single address.
func whole(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}
