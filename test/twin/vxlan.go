package twin

import (
	"encoding/binary"
	"net/netip"
)

// The reasons that packets are counted as here.
const (
	TunnelFrom Reason = "tunnel-source"
)

// The tunnel between nodes (VXLAN). Nothing in its packets is secret, so what matters is who can send
// to its port, and what may come out of it from whom.

// thisNode is the number of this node, other nodes have higher ones.
const thisNode = 1

// firstTunnelPort is the lowest port from which nodes send to each other's tunnels.
const firstTunnelPort = 61000

// isOfTunnel reports whether a packet that comes in is for the tunnel of this node, but from a port
// that no node's tunnel has.
func (s *step) isOfTunnel() bool {
	_, own := s.Addresses[s.flow.Dest.Addr()]
	return own && s.content == ported && s.flow.Proto == protoUDP && s.TunnelPort != 0 && s.flow.Dest.Port() == s.TunnelPort &&
		s.flow.Source.Port() < firstTunnelPort
}

// isForTunnel reports whether a packet that a pod sends could get to the tunnel of any node, or to one
// of another host as a node's. What has more headers than are read may.
func (s *step) isForTunnel(frame []byte) bool {
	p := read(frame)
	hides := p.content == other && p.l3 != 0 && !p.v4 && !p.short && (p.flow.Proto == 0 || p.flow.Proto == 43 || p.flow.Proto == 44 || p.flow.Proto == 60)
	if s.TunnelPort == 0 || !hides && (p.content != ported || p.flow.Proto != protoUDP || p.flow.Dest.Port() != s.TunnelPort) {
		return false
	}
	from, to := p.flow.Source.Addr(), p.flow.Dest.Addr()
	_, own := s.Addresses[to]
	if p.v4 && (to.As4()[0] >= 224 || s.Routes[to].Device == 0) { // this node takes what has no other way
		return true
	}
	return own || s.Nodes[to] != 0 || s.Nodes[from] != 0 || to.IsUnspecified() || to.IsMulticast() || to.Is6() && to.IsLinkLocalUnicast()
}

// owner returns the number of the node behind which an address belongs; zero if it is none.
func (t *Tables) owner(addr netip.Addr) (number int) {
	longest := -1
	for prefix, node := range t.Sources {
		if prefix.Contains(addr) && prefix.Bits() > longest {
			longest, number = prefix.Bits(), node
		}
	}
	return number
}

// Emerge returns what must happen to a frame that comes out of the tunnel, in a packet from an
// address. If there is none, this node has put it there.
func (n *Node) Emerge(frame []byte, device int, sender netip.Addr, w Witness) (Outcome, error) {
	s := &step{Node: n, packet: read(frame), frame: frame, device: device, witness: w, emerges: true, behind: true}
	if sender.IsValid() && !s.mayEmerge(sender) {
		s.drop(TunnelFrom, "from no sender of it")
	} else {
		s.comeIn()
	}
	s.out.Path = "tunnel, " + s.out.Path
	return s.out, s.err
}

// mayEmerge reports whether the source of a packet belongs behind a sender, which must be another
// node: it is one of that node's, or of no node but such that a client outside can have it.
func (s *step) mayEmerge(sender netip.Addr) bool {
	from, to := s.saysIP()
	node := s.Nodes[sender]
	if node <= thisNode || !from.IsValid() || from.Is4In6() || to.Is4In6() {
		return false
	}
	if owner := s.owner(from); owner != 0 {
		return owner == node
	}
	if _, own := s.Addresses[from]; own || from.IsUnspecified() || from.IsLoopback() {
		return false
	}
	if from.Is4() {
		return from.As4()[0] != 0 && from.As4()[0] < 224 && !from.IsLinkLocalUnicast()
	}
	return !from.IsLinkLocalUnicast() && !from.IsMulticast()
}

// saysIP returns the addresses in a frame that says that it is IP and is as long as a header of it,
// whatever else is wrong with it.
func (s *step) saysIP() (from, to netip.Addr) {
	if len(s.frame) < 14+20 {
		return from, to
	}
	switch ip := s.frame[14:]; binary.BigEndian.Uint16(s.frame[12:]) {
	case 0x0800:
		return netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case 0x86dd:
		if len(ip) >= 40 {
			return netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		}
	}
	return from, to
}
