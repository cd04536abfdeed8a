package twin

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// tunnel is the encapsulation that another node has put around a packet.
type tunnel struct {
	from, to netip.Addr // that node and the backend; the other way round if the packet is given back
	port     uint16     // of the backend; 0: the packet is given back
	mode     Direct
	size     int
}

// isForwarded and isReturned report whether another node has forwarded the packet, or gives it
// back.
func (s *step) isForwarded() bool { return s.tunnel != nil && !s.isReturned() }
func (s *step) isReturned() bool {
	return s.tunnel != nil && s.tunnel.mode != DirectOpt && s.tunnel.port == 0
}

// unwrap removes the encapsulation of another node, if the packet is for a backend here or about a
// flow of this node. tc does that, so XDP does nothing more with the packet.
func (s *step) unwrap() {
	if s.unmark() {
		return
	}
	t, ok := s.readTunnel()
	if !ok || t.port != 0 && !s.isForBackend(t) || t.port == 0 && !s.isAboutOurs(t) {
		return
	}
	s.frame = append(bytes.Clone(s.frame[:s.l3]), s.frame[s.l3+t.size:]...)
	s.packet, s.tunnel, s.behind = read(s.frame), &t, true
	s.out.Inner = s.frame
}

// readTunnel parses what may be an encapsulation: an unfragmented IP header without options, or
// that and Geneve with exactly one option.
func (s *step) readTunnel() (t tunnel, ok bool) {
	if s.l3 == 0 || s.l4 == 0 {
		return tunnel{}, false
	}
	ip, base := s.frame[s.l3:], s.base()
	if s.flow.Proto == protoUDP && s.content == ported {
		l4 := s.frame[s.l4:]
		if s.l4 != s.l3+base || s.first || len(l4) < geneveSize || s.flow.Dest.Port() != genevePort || l4[8] != 2 ||
			!bytes.Equal(l4[16:20], []byte{0xff, 0x1d, 0x81, 1}) {
			return tunnel{}, false
		}
		return tunnel{s.flow.Source.Addr(), s.flow.Dest.Addr(), binary.BigEndian.Uint16(l4[20:]), DirectGeneve, base + geneveSize}, true
	}
	t = tunnel{from: s.flow.Source.Addr(), to: s.flow.Dest.Addr(), mode: DirectIPIP, size: s.l4 - s.l3}
	if s.v4 {
		t.port = binary.BigEndian.Uint16(ip[4:])
		return t, s.flow.Proto == 4 && t.size == base && s.whole && !s.first
	}
	t.port = binary.BigEndian.Uint16(ip[2:])
	return t, s.flow.Proto == 41 && t.size == base
}

// isHosted reports whether the second of two addresses is that of a backend on this node.
func (n *Node) isHosted(ends []byte) bool {
	to, _ := netip.AddrFromSlice(ends[len(ends)/2:])
	for at := range n.Hosted {
		if at.Addr() == to {
			return true
		}
	}
	return false
}

// isForBackend reports whether the content of a tunnel may be for a backend on this node. A packet
// without readable ports may concern one.
func (s *step) isForBackend(t tunnel) bool {
	inner := s.frame[s.l3+t.size:]
	if !s.isHosted(endsOf(s.frame[s.l3:])) || len(inner) < s.base() || inner[0]>>4 != s.frame[s.l3]>>4 {
		return false
	}
	ends := endsOf(inner)
	to, _ := netip.AddrFromSlice(ends[len(ends)/2:])
	proto := inner[6]
	if s.v4 {
		if proto = inner[9]; inner[0]&15 != 5 || binary.BigEndian.Uint16(inner[6:])&0x1fff != 0 {
			return true
		}
	}
	if proto != protoTCP && proto != protoUDP && proto != protoSCTP {
		return true
	}
	if len(inner) < s.base()+8 {
		return false
	}
	port := binary.BigEndian.Uint16(inner[s.base()+2:])
	own, anywhere := Key{netip.AddrPortFrom(to, port), proto}, Key{netip.AddrPortFrom(anyAddr(to), port), proto}
	for _, known := range []map[Key]Frontend{s.Frontends, s.Closed} {
		if _, ok := known[own]; ok {
			return true
		}
		if _, ok := known[anywhere]; ok {
			return true
		}
	}
	return false
}

// isAboutOurs reports whether the content of a tunnel was forwarded from here to the node it comes
// from.
func (s *step) isAboutOurs(t tunnel) bool {
	inner := readIPv6(s.frame, s.l3+t.size)
	if s.v4 {
		inner = readIPv4(s.frame, s.l3+t.size)
	}
	if inner.content != ported {
		return false
	}
	row, torn := s.find(inner.flow)
	return row != nil && !torn && !row.Reply && row.Direct != DirectOpt && row.Dest.Addr() == t.from && row.Source.Addr() == t.to
}

// meant returns the frontend that another node means with a packet it forwards. Its NodePorts are
// at addresses that are not known here, and a frontend closed here may be open there.
func (s *step) meant() (found Frontend, closed, ok bool) {
	if found, ok := s.frontend(s.flow, false); ok {
		return found, false, true
	}
	anywhere := Key{netip.AddrPortFrom(anyAddr(s.flow.Dest.Addr()), s.flow.Dest.Port()), s.flow.Proto}
	if found, ok := s.Frontends[anywhere]; ok && found.Kind == NodePort {
		return found, false, true
	}
	if found, ok := s.Closed[Key{s.flow.Dest, s.flow.Proto}]; ok {
		return found, true, true
	}
	found, ok = s.Closed[anywhere]
	return found, true, ok && found.Kind == NodePort
}

// host handles the first packet of a flow that another node forwards to a backend here, however
// that node chose.
func (s *step) host() {
	found, closed, ok := s.meant()
	backend := Backend{At: netip.AddrPortFrom(s.tunnel.to, s.tunnel.port), Local: true}
	s.touch(s.flow)
	switch {
	case !ok || !s.Hosted[backend.At]:
		s.drop(Stray, "hosted, stray")
		return
	case found.Kind == ClusterIP && !s.ExternalClusterIP:
		s.drop(IsClusterIP, "hosted, cluster IP")
		return
	case found.Kind == LoadBalancer && !s.allows(found.Service, s.flow.Source.Addr()):
		s.drop(SourceRange, "hosted, not let in")
		return
	}
	if way := s.route(backend.At, s.flow.Source); s.tunnel.mode != DirectOpt && !s.Served[way.Device] {
		s.giveBack(backend.At)
		return
	}
	wrote, ok := s.witness.Half(s.flow)
	if !ok {
		if s.isFree(Flow{backend.At, s.flow.Source, s.flow.Proto}) || !s.isCrowded(backend.At, s.flow.Source.Addr()) {
			s.refuse("no way to %s was found", backend.At)
		}
		s.drop(NoPort, "hosted, no port")
		return
	}
	path := "hosted, " + s.tunnel.mode.String()
	if closed {
		path += ", closed"
	}
	s.send(s.enterBoth(backend, found.Kind == LoadBalancer, wrote.Source, &path), path)
}

// giveBack returns a packet to the node that forwarded it, because an answer could not get its
// source.
func (s *step) giveBack(backend netip.AddrPort) {
	row := Row{Source: backend, Dest: netip.AddrPortFrom(s.tunnel.from, 0), Direct: s.tunnel.mode}
	row.Way = s.wayOf(&row)
	s.givesBack = true
	s.send(&row, "given back, "+row.Direct.String())
}
