package maps

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// NodeAddr describes an address of the node.
type NodeAddr = bpf.MapsNodeAddr

// NodePorts marks an address at which clients outside the node reach NodePorts.
const NodePorts = uint32(bpf.MapsNodeAddrFlagNODE_ADDR_PORTS)

// addrMaps hold the addresses of the node, and those that backends on other nodes see.
type addrMaps struct{ NodeAddrs, SnatAddrs *ebpf.Map }

// SetNodeAddrs makes the map of the node's addresses equal to want and returns how many rows it
// changed. Rows that stay are never absent meanwhile.
func (m *addrMaps) SetNodeAddrs(want map[netip.Addr]NodeAddr) (changed int, err error) {
	var key Addr
	var row NodeAddr
	var gone []Addr
	have := map[netip.Addr]NodeAddr{}
	rows := m.NodeAddrs.Iterate()
	for rows.Next(&key, &row) {
		addr := NetipOf(key)
		if _, ok := want[addr]; !ok {
			gone = append(gone, key)
		}
		have[addr] = row
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("read the node's addresses: %w", err)
	}
	for addr, row := range want {
		if had, ok := have[addr]; ok && had == row {
			continue
		}
		if err := m.NodeAddrs.Put(AddrOf(addr), row); err != nil {
			return changed, fmt.Errorf("add %s to the node's addresses: %w", addr, err)
		}
		changed++
	}
	for _, key := range gone {
		if err := m.NodeAddrs.Delete(key); err != nil {
			return changed, fmt.Errorf("remove %s from the node's addresses: %w", NetipOf(key), err)
		}
		changed++
	}
	return changed, nil
}

// SetSnatAddr sets the address that backends on other nodes see as the client. An unspecified
// address clears that of its family. Programs ignore an address that the node does not have.
func (m *addrMaps) SetSnatAddr(addr netip.Addr) error {
	return m.setSnatAddr(addr, bpf.MapsSnatAddrSNAT_NODE4, bpf.MapsSnatAddrSNAT_NODE6)
}

// SetTunnelAddr sets the address that backends reached through the tunnel see as the client.
// Without one they see the address of SetSnatAddr.
func (m *addrMaps) SetTunnelAddr(addr netip.Addr) error {
	return m.setSnatAddr(addr, bpf.MapsSnatAddrSNAT_TUNNEL4, bpf.MapsSnatAddrSNAT_TUNNEL6)
}

func (m *addrMaps) setSnatAddr(addr netip.Addr, row4, row6 bpf.MapsSnatAddr) error {
	row := row4
	if addr.Is6() && !addr.Is4In6() {
		row = row6
	}
	if err := m.SnatAddrs.Put(uint32(row), AddrOf(addr)); err != nil {
		return fmt.Errorf("write the address that backends on other nodes see, %s: %w", addr, err)
	}
	return nil
}

// SnatAddrs returns the addresses of the node that SetSnatAddr has set, of either family.
func SnatAddrs(m *ebpf.Map) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, row := range []bpf.MapsSnatAddr{bpf.MapsSnatAddrSNAT_NODE4, bpf.MapsSnatAddrSNAT_NODE6} {
		var addr Addr
		if err := m.Lookup(uint32(row), &addr); err != nil {
			return nil, fmt.Errorf("read the address that backends on other nodes see: %w", err)
		}
		if ip := NetipOf(addr); !ip.IsUnspecified() {
			list = append(list, ip)
		}
	}
	return list, nil
}

// NodeAddrList returns the node's addresses as the programs see them.
func NodeAddrList(m *ebpf.Map) ([]netip.Addr, error) {
	var key Addr
	var row NodeAddr
	var list []netip.Addr
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		list = append(list, NetipOf(key))
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the node's addresses: %w", err)
	}
	return list, nil
}
