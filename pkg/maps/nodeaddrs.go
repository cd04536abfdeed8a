package maps

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// NodeAddr is what is known of an address of the node.
type NodeAddr = bpf.MapsNodeAddr

// NodePorts is the flag of an address at which clients outside of the node reach NodePorts.
const NodePorts = uint32(bpf.MapsNodeAddrFlagNODE_ADDR_PORTS)

// SetNodeAddrs makes the map of the node's addresses say what want says, and returns how many rows that changed. Every
// address that stays is there all the time.
func (m *Maps) SetNodeAddrs(want map[netip.Addr]NodeAddr) (changed int, err error) {
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

// SetSnatAddr makes addr, of which only the family counts if it is unspecified, what backends on other nodes see as the
// client. Programs do not use an address that is not among the node's.
func (m *Maps) SetSnatAddr(addr netip.Addr) error {
	return m.setSnatAddr(addr, bpf.MapsSnatAddrSNAT_NODE4, bpf.MapsSnatAddrSNAT_NODE6)
}

// SetTunnelAddr does so for backends to which the tunnel leads. Without one they see what others do.
func (m *Maps) SetTunnelAddr(addr netip.Addr) error {
	return m.setSnatAddr(addr, bpf.MapsSnatAddrSNAT_TUNNEL4, bpf.MapsSnatAddrSNAT_TUNNEL6)
}

func (m *Maps) setSnatAddr(addr netip.Addr, row4, row6 bpf.MapsSnatAddr) error {
	row := row4
	if addr.Is6() && !addr.Is4In6() {
		row = row6
	}
	if err := m.SnatAddrs.Put(uint32(row), AddrOf(addr)); err != nil {
		return fmt.Errorf("write the address that backends on other nodes see, %s: %w", addr, err)
	}
	return nil
}

// NodeAddrList returns the node's addresses as the programs know them.
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
