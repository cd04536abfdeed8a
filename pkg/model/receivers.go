package model

import (
	"net/netip"
	"slices"
)

// NodesOnly reports whether nodes receive at a port what only nodes may send them: the tunnels of
// VXLAN and of Geneve.
func NodesOnly(port uint16, protocol Protocol) bool {
	return protocol == UDP && (port == 8472 || port == 6081)
}

// IsNode reports whether an address is a node's, or one of this node's devices.
func (s *claims) IsNode(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, local := s.local[addr]; local {
		return true
	}
	return s.nodeAddrs[addr] > 0
}

// moves are the addresses and pod CIDRs that came or went with some Nodes.
type moves struct {
	addrs    map[netip.Addr]int // by how many Nodes more have it
	podCIDRs map[netip.Prefix]struct{}
}

// add enters a Node's change.
func (m *moves) add(was, is *Node) {
	if m.addrs == nil {
		m.addrs, m.podCIDRs = map[netip.Addr]int{}, map[netip.Prefix]struct{}{}
	}
	if !slices.Equal(was.Addrs, is.Addrs) {
		for _, addr := range was.Addrs {
			m.addrs[addr]--
		}
		for _, addr := range is.Addrs {
			m.addrs[addr]++
		}
	}
	if !slices.Equal(was.PodCIDRs, is.PodCIDRs) {
		for _, cidr := range slices.Concat(was.PodCIDRs, is.PodCIDRs) {
			m.podCIDRs[cidr.Masked()] = struct{}{}
		}
		// A network of pods begins with the address of its node's end of the tunnel.
		for _, cidr := range was.PodCIDRs {
			m.addrs[cidr.Masked().Addr()]--
		}
		for _, cidr := range is.PodCIDRs {
			m.addrs[cidr.Masked().Addr()]++
		}
	}
}

// nodesMoved makes due the Services that the changes of Nodes can affect: those that name one of
// their addresses, and those with an endpoint there that is refused at a node. It is called once for
// many Nodes, since each call looks at all claims if pod CIDRs changed.
func (s *claims) nodesMoved(m *moves) {
	if len(m.addrs)+len(m.podCIDRs) == 0 {
		return
	}
	s.nodeIndex.built = false
	for addr, by := range m.addrs {
		s.markClaimants(addr)
		if s.nodeAddrs[addr] += by; s.nodeAddrs[addr] == 0 {
			delete(s.nodeAddrs, addr)
		}
		for name := range s.tunnelEnds[addr] {
			s.mark(Key{KindService, name})
		}
	}
	if len(m.podCIDRs) > 0 {
		index := nodeIndex{podCIDRs: map[netip.Prefix]string{}}
		for cidr := range m.podCIDRs {
			index.addCIDR(cidr, "")
		}
		s.markNamed(func(addr netip.Addr) bool { _, ok := index.pod(addr); return ok })
	}
	s.moved++
	for _, c := range []chan struct{}{s.inside, s.others, s.cluster, s.wake} {
		signal(c)
	}
}

// countTunnelEnds counts the endpoints of a slice that are refused at a node's address.
func (s *claims) countTunnelEnds(slice *Slice, by int) {
	service := Name{slice.Namespace, slice.Service}
	for _, port := range slice.Ports {
		if !NodesOnly(port.Port, port.Protocol) {
			continue
		}
		for i := range slice.Endpoints {
			addr := slice.Endpoints[i].Addr
			if s.tunnelEnds[addr] == nil {
				s.tunnelEnds[addr] = map[Name]int{}
			}
			if s.tunnelEnds[addr][service] += by; s.tunnelEnds[addr][service] == 0 {
				delete(s.tunnelEnds[addr], service)
			}
			if len(s.tunnelEnds[addr]) == 0 {
				delete(s.tunnelEnds, addr)
			}
		}
	}
}
