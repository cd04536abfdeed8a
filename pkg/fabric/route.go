package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

const (
	// protocol marks our routes; no other has this number in /etc/iproute2/rt_protos.
	protocol = 102
	// metric is higher than the defaults, so that anybody's own route to the same network wins.
	metric = 4000
	// number is the VXLAN network identifier.
	number = 1
)

// The attributes of a route through a tunnel, from linux/lwtunnel.h. Their numbers are the same for
// IPv4 and IPv6.
const (
	tunnelID    = 1
	tunnelDst   = 2
	tunnelFlags = 6
	// checksummed makes the tunnel send UDP checksums, without which IPv6 drops packets.
	checksummed = 1
)

// route is one of our routes.
type route struct {
	to     netip.Prefix
	device int        // 0: unreachable
	via    netip.Addr // of either family
	tunnel netip.Addr // the remote node; invalid if there is no tunnel
	source netip.Addr // source address for what the node itself sends; invalid for any
}

func familyOf(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// add returns the change that adds the route, or replaces ours to the same network.
func (r route) add() change {
	request := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	header := r.header()
	request.AddData(header)
	r.addTo(request)
	if r.device == 0 {
		header.Type = unix.RTN_UNREACHABLE
		return change{what: fmt.Sprintf("add the unreachable route to %s", r.to), request: request}
	}
	request.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(r.device))))
	if r.via.Is4() == r.to.Addr().Is4() {
		request.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.via.AsSlice()))
	} else {
		via := binary.NativeEndian.AppendUint16(nil, uint16(familyOf(r.via)))
		request.AddData(nl.NewRtAttr(unix.RTA_VIA, append(via, r.via.AsSlice()...)))
	}
	if r.source.IsValid() {
		request.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, r.source.AsSlice()))
	}
	if r.tunnel.IsValid() {
		if r.via.Is4() {
			header.Flags |= unix.RTNH_F_ONLINK // the device has no subnet that would contain the gateway
		}
		kind, encap := r.encap()
		request.AddData(nl.NewRtAttr(unix.RTA_ENCAP_TYPE, nl.Uint16Attr(kind)))
		request.AddData(nl.NewRtAttr(unix.RTA_ENCAP|unix.NLA_F_NESTED, encap))
	}
	return change{what: fmt.Sprintf("add the route to %s", r.to), request: request}
}

// remove returns the change that removes our route with this metric, and nobody else's.
func (r route) remove(at uint32) change {
	request := nl.NewNetlinkRequest(unix.RTM_DELROUTE, 0)
	header := r.header()
	header.Scope = unix.RT_SCOPE_NOWHERE // any
	header.Type = unix.RTN_UNSPEC
	request.AddData(header)
	request.AddData(nl.NewRtAttr(unix.RTA_DST, r.to.Addr().AsSlice()))
	request.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(at)))
	return change{what: fmt.Sprintf("remove the route to %s", r.to), request: request, missing: unix.ESRCH}
}

func (r route) header() *nl.RtMsg {
	return &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: familyOf(r.to.Addr()), Dst_len: uint8(r.to.Bits()), Table: unix.RT_TABLE_MAIN, Protocol: protocol,
		Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST,
	}}
}

func (r route) addTo(request *nl.NetlinkRequest) {
	request.AddData(nl.NewRtAttr(unix.RTA_DST, r.to.Addr().AsSlice()))
	request.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(metric)))
}

// encap returns the tunnel attributes of the route, for which the netlink package has no support.
func (r route) encap() (kind uint16, attrs []byte) {
	add := func(name int, value []byte) { attrs = append(attrs, nl.NewRtAttr(name, value).Serialize()...) }
	add(tunnelID, binary.BigEndian.AppendUint64(nil, number))
	add(tunnelDst, r.tunnel.AsSlice())
	if r.tunnel.Is4() {
		return nl.LWTUNNEL_ENCAP_IP, attrs
	}
	add(tunnelFlags, binary.BigEndian.AppendUint16(nil, checksummed))
	return nl.LWTUNNEL_ENCAP_IP6, attrs
}

// found is a route of the kernel's, ours or not.
type found struct {
	route
	kind, table, protocol, scope uint8
	cloned                       bool
	metric                       uint32
}

// isOurs reports whether the route was added by a Fabric.
func (f *found) isOurs() bool {
	return f.protocol == protocol && f.table == unix.RT_TABLE_MAIN && !f.cloned
}

// parseRoute parses the kernel's message about a route.
func parseRoute(message []byte) (found, error) {
	if len(message) < unix.SizeofRtMsg {
		return found{}, errors.New("read a route: the message is too short")
	}
	header := nl.DeserializeRtMsg(message)
	attrs, err := nl.ParseRouteAttr(message[unix.SizeofRtMsg:])
	if err != nil {
		return found{}, fmt.Errorf("read a route: %w", err)
	}
	f := found{kind: header.Type, table: header.Table, protocol: header.Protocol, scope: header.Scope, cloned: header.Flags&unix.RTM_F_CLONED != 0}
	to := netip.IPv6Unspecified()
	if header.Family == unix.AF_INET {
		to = netip.IPv4Unspecified()
	}
	for _, attr := range attrs {
		addr, _ := netip.AddrFromSlice(attr.Value)
		switch attr.Attr.Type {
		case unix.RTA_DST:
			to = addr
		case unix.RTA_GATEWAY:
			f.via = addr
		case unix.RTA_VIA:
			f.via, _ = netip.AddrFromSlice(attr.Value[min(2, len(attr.Value)):])
		case unix.RTA_PREFSRC:
			f.source = addr
		case unix.RTA_OIF:
			f.device = int(wordOf(attr.Value))
		case unix.RTA_PRIORITY:
			f.metric = wordOf(attr.Value)
		case unix.RTA_ENCAP, unix.RTA_ENCAP | unix.NLA_F_NESTED:
			f.tunnel = tunnelOf(attr.Value)
		}
	}
	f.to = netip.PrefixFrom(to, int(header.Dst_len))
	if f.kind == unix.RTN_UNREACHABLE {
		f.device = 0 // IPv6 has lo here
	}
	return f, nil
}

func wordOf(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// tunnelOf returns the remote end of a tunnel, or the unspecified address if the tunnel is not of
// our network.
func tunnelOf(value []byte) (to netip.Addr) {
	attrs, err := nl.ParseRouteAttr(value)
	if err != nil {
		return netip.IPv4Unspecified()
	}
	for _, attr := range attrs {
		switch attr.Attr.Type {
		case tunnelID:
			if len(attr.Value) < 8 || binary.BigEndian.Uint64(attr.Value) != number {
				return netip.IPv4Unspecified()
			}
		case tunnelDst:
			to, _ = netip.AddrFromSlice(attr.Value)
		}
	}
	return to
}

// listRoutes returns all routes of the kernel.
func listRoutes() ([]found, error) {
	var list []found
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		messages, err := dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, message := range messages {
			f, err := parseRoute(message)
			if err != nil {
				return nil, err
			}
			list = append(list, f)
		}
	}
	return list, nil
}

// dump lists something, and does so again if it changed meanwhile.
func dump(ask int, answer uint16, header nl.NetlinkRequestData) ([][]byte, error) {
	return devices.Dump(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(ask, unix.NLM_F_DUMP)
		request.AddData(header)
		return request.Execute(unix.NETLINK_ROUTE, answer)
	})
}

// neighbor is the MAC address of a neighbor on the tunnel's device.
type neighbor struct {
	addr netip.Addr
	mac  [6]byte
}

func (n neighbor) change(device int, add bool) change {
	verb, flags, what := unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, "add"
	var missing unix.Errno
	if !add {
		verb, flags, what, missing = unix.RTM_DELNEIGH, 0, "remove", unix.ENOENT
	}
	request := nl.NewNetlinkRequest(verb, flags)
	request.AddData(&netlink.Ndmsg{Family: familyOf(n.addr), Index: uint32(device), State: unix.NUD_PERMANENT, Type: unix.RTN_UNICAST})
	request.AddData(nl.NewRtAttr(unix.NDA_DST, n.addr.AsSlice()))
	if add {
		request.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.mac[:]))
	}
	return change{what: fmt.Sprintf("%s the neighbor %s", what, n.addr), request: request, missing: missing}
}

// listNeighbors returns the permanent neighbors on a device.
func listNeighbors(device int) (map[netip.Addr][6]byte, error) {
	all, err := devices.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(device, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbors: %w", err)
	}
	known := map[netip.Addr][6]byte{}
	for i := range all {
		addr, ok := netip.AddrFromSlice(all[i].IP)
		if ok && all[i].State&unix.NUD_PERMANENT != 0 && len(all[i].HardwareAddr) == 6 && !addr.IsMulticast() {
			known[addr.Unmap()] = [6]byte(all[i].HardwareAddr)
		}
	}
	return known, nil
}
