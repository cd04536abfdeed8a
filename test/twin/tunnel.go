package twin

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// The reasons that packets are counted as here.
const (
	IsClusterIP Reason = "cluster-ip"
	SourceRange Reason = "source-range"
	Stray       Reason = "stray"
)

// tunnel is the encapsulation that another node has put around a packet.
type tunnel struct {
	from, to netip.Addr // that node and the backend, or this node if the packet is given back
	port     uint16     // of the backend; 0: the packet is given back
	mode     Direct
	size     int
	source   uint16 // port of Geneve
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
	if !ok || s.Nodes[t.from] <= thisNode || t.source > lastSource {
		return
	}
	if t.port != 0 && !(s.leadsTo(t, s.isFrontend) && s.isHere()) || t.port == 0 && !s.isAboutOurs(t) {
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
		return tunnel{s.flow.Source.Addr(), s.flow.Dest.Addr(), binary.BigEndian.Uint16(l4[20:]), DirectGeneve, base + geneveSize, s.flow.Source.Port()}, true
	}
	t = tunnel{from: s.flow.Source.Addr(), to: s.flow.Dest.Addr(), mode: DirectIPIP, size: s.l4 - s.l3}
	if s.v4 {
		t.port = binary.BigEndian.Uint16(ip[4:])
		return t, s.flow.Proto == 4 && t.size == base && s.whole && !s.first
	}
	t.port = binary.BigEndian.Uint16(ip[2:])
	return t, s.flow.Proto == 41 && t.size == base
}

// lastSource is the highest port from which nodes send Geneve.
const lastSource = 1023

// isHere reports whether a packet's destination is on this node: that of a backend, or one that the
// routes keep here, such as that of a backend that has left.
func (s *step) isHere() bool {
	ends := endsOf(s.frame[s.l3:])
	to, _ := netip.AddrFromSlice(ends[len(ends)/2:])
	for at := range s.Hosted {
		if at.Addr() == to {
			return true
		}
	}
	way := s.route(s.flow.Source, netip.AddrPortFrom(to, 0))
	return !s.NatDevices[way.Device]
}

// isFrontendAddr reports whether a frontend has exactly this address, here or on another node.
func (t *Tables) isFrontendAddr(addr netip.Addr) bool {
	for _, known := range []map[Key]Frontend{t.Frontends, t.Closed} {
		for key := range known {
			if key.At.Addr() == addr {
				return true
			}
		}
	}
	return false
}

// isFrontends reports whether an address is one that clients of frontends dial. Frontends at any
// address are at those of nodes.
func (t *Tables) isFrontends(addr netip.Addr) bool {
	return t.isFrontendAddr(addr) || t.Nodes[addr] != 0 && t.isFrontendAddr(anyAddr(addr))
}

// isFrontend reports whether a client dials a frontend, here or on another node.
func (t *Tables) isFrontend(to netip.AddrPort, proto uint8) bool {
	own, anywhere := Key{to, proto}, Key{netip.AddrPortFrom(anyAddr(to.Addr()), to.Port()), proto}
	for _, known := range []map[Key]Frontend{t.Frontends, t.Closed} {
		if _, ok := known[own]; ok {
			return true
		}
		if _, ok := known[anywhere]; ok {
			return true
		}
	}
	return false
}

// isNodesFrontend reports the same of what a pod sends. At an address that is nobody's, the number of
// a NodePort is only a number.
func (t *Tables) isNodesFrontend(to netip.AddrPort, proto uint8) bool {
	_, own := t.Addresses[to.Addr()]
	if own || t.Nodes[to.Addr()] != 0 {
		return t.isFrontend(to, proto)
	}
	_, open := t.Frontends[Key{to, proto}]
	_, closed := t.Closed[Key{to, proto}]
	return open || closed
}

// leadsTo reports whether the content of a tunnel is for a frontend. A packet without readable ports
// may concern one.
func (s *step) leadsTo(t tunnel, isFrontend func(netip.AddrPort, uint8) bool) bool {
	inner := s.frame[s.l3+t.size:]
	if len(inner) < s.base() || inner[0]>>4 != s.frame[s.l3]>>4 {
		return false
	}
	ends := endsOf(inner)
	to, _ := netip.AddrFromSlice(ends[len(ends)/2:])
	to = to.Unmap() // tables have IPv4 in that form
	proto, l4 := inner[6], s.base()
	if s.v4 {
		if proto, l4 = inner[9], int(inner[0]&15)*4; l4 < 20 {
			return false
		}
		if binary.BigEndian.Uint16(inner[6:])&0x1fff != 0 {
			return s.isFrontends(to)
		}
	}
	if proto != protoTCP && proto != protoUDP && proto != protoSCTP {
		return s.isFrontends(to)
	}
	if len(inner) < l4+8 {
		return false
	}
	return isFrontend(netip.AddrPortFrom(to, binary.BigEndian.Uint16(inner[l4+2:])), proto)
}

// isAboutOurs reports whether the content of a tunnel was forwarded from the address that it came to.
func (s *step) isAboutOurs(t tunnel) bool {
	inner := readIPv6(s.frame, s.l3+t.size)
	if s.v4 {
		inner = readIPv4(s.frame, s.l3+t.size)
	}
	if inner.content != ported {
		return false
	}
	row, torn := s.find(inner.flow)
	return row != nil && !torn && !row.Reply && row.Direct != DirectOpt && row.Source.Addr() == t.to
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
	service, known := s.Hosted[backend.At]
	known = known && (service == 0 || service == found.Service)
	switch {
	case !ok:
		s.drop(Stray, "hosted, stray")
		return
	case found.Kind == ClusterIP && !s.ExternalClusterIP:
		s.drop(IsClusterIP, "hosted, cluster IP")
		return
	case backend.At.Port() == 0:
		s.drop(Stray, "hosted, stray")
		return
	case found.Kind == LoadBalancer && !s.allows(found.Service, s.flow.Source.Addr()):
		s.drop(SourceRange, "hosted, not let in")
		return
	case s.tunnel.mode == DirectOpt && (!known || s.Services[found.Service].Ranged):
		s.beginOf(found)
		s.out.Path = "hosted, dialed here, " + s.out.Path
		return
	}
	if way := s.route(backend.At, s.flow.Source); s.tunnel.mode != DirectOpt && (!known || !s.NatDevices[way.Device]) {
		s.giveBack()
		return
	}
	wrote, ok := s.witness.Pending(s.flow)
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

// giveBack returns a packet to the node that forwarded it: an answer could not get its source, or
// the service has no such backend here.
func (s *step) giveBack() {
	snat, known := s.snat()
	if !known {
		s.drop(NoAddress, "given back, no address")
		return
	}
	row := Row{Source: netip.AddrPortFrom(snat, 0), Dest: netip.AddrPortFrom(s.tunnel.from, 0), Direct: s.tunnel.mode}
	row.Way = s.wayOf(&row)
	s.givesBack = true
	s.send(&row, "given back, "+row.Direct.String())
}
