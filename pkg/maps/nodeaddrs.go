package maps

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// SetNodeAddrs makes the map of the node's addresses say what want says, the index of an interface for each address, and
// returns how many rows that changed. Every address that stays is there all the time.
func (m *Maps) SetNodeAddrs(want map[netip.Addr]uint32) (changed int, err error) {
	var key Addr
	var row bpf.MapsNodeAddr
	var gone []Addr
	have := map[netip.Addr]uint32{}
	rows := m.NodeAddrs.Iterate()
	for rows.Next(&key, &row) {
		addr := NetipOf(key)
		if _, ok := want[addr]; !ok {
			gone = append(gone, key)
		}
		have[addr] = row.Ifindex
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("read the node's addresses: %w", err)
	}
	for addr, ifindex := range want {
		if had, ok := have[addr]; ok && had == ifindex {
			continue
		}
		if err := m.NodeAddrs.Put(AddrOf(addr), bpf.MapsNodeAddr{Ifindex: ifindex}); err != nil {
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

// NodeAddrList returns the node's addresses as the programs know them.
func NodeAddrList(m *ebpf.Map) ([]netip.Addr, error) {
	var key Addr
	var row bpf.MapsNodeAddr
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
