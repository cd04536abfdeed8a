package model

import "net/netip"

// NodesOnly reports whether nodes receive at a port what only nodes may send them: the tunnels of
// VXLAN and of Geneve.
func NodesOnly(port uint16, protocol Protocol) bool {
	return protocol == UDP && (port == 8472 || port == 6081)
}

// IsNode reports whether an address is a node's, or one of this node's devices.
func (s *Store) IsNode(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, local := s.local[addr]; local {
		return true
	}
	return s.nodeAddrs[addr] > 0
}

// countNode counts the addresses of a node that came or went, and makes due the Services with
// endpoints at them that are refused at a node.
func (s *Store) countNode(was, is *Node) {
	moved := map[netip.Addr]int{}
	for _, addr := range was.Addrs {
		moved[addr]--
	}
	for _, addr := range is.Addrs {
		moved[addr]++
	}
	for addr, by := range moved {
		if s.nodeAddrs[addr] += by; s.nodeAddrs[addr] == 0 {
			delete(s.nodeAddrs, addr)
		}
	}
	for name, e := range s.services {
		if e.service != nil && e.atNodesOnly(func(addr netip.Addr) bool { return moved[addr] != 0 }) {
			s.mark(Key{KindService, name})
		}
	}
}

// atNodesOnly reports whether an endpoint with such a port has a wanted address.
func (e *entry) atNodesOnly(wanted func(netip.Addr) bool) bool {
	for _, slice := range e.slices {
		for _, port := range slice.Ports {
			if !NodesOnly(port.Port, port.Protocol) {
				continue
			}
			for i := range slice.Endpoints {
				if wanted(slice.Endpoints[i].Addr) {
					return true
				}
			}
		}
	}
	return false
}
