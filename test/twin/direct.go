package twin

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// The reasons that packets are counted as here.
const (
	DSRReturned Reason = "dsr-returned"
)

// Flows to backends on other nodes that answer their clients directly, see docs/dsr.md. This node
// sees only the client's packets, and forwards them unchanged, encapsulated for the backend.

// enterDirect makes the row of such a flow, whose first packet may be any.
func (s *step) enterDirect(backend Backend, guarded bool) {
	row := Row{Source: s.flow.Source, Dest: backend.At, Guarded: guarded, Direct: s.mode, Seen: s.Now}
	if s.mode != DirectOpt {
		snat, known := s.snat()
		if !known {
			s.refuse("%s must be reached from here, but the node has no address", backend.At)
		}
		row.Source = netip.AddrPortFrom(snat, s.flow.Source.Port())
		row.Made = uint16(s.Now)
	}
	row.State = s.directAfter(row.State)
	row.Reached = s.reached()
	row.Way = s.wayOf(&row)
	s.Pending[s.flow] = &row
	s.isNew = s.begins() || !s.shakesHands()
	s.send(&row, "begun, "+row.Direct.String())
}

// directAfter returns how far the client is. This node never sees an answer, but a client that
// sends more has got one.
func (p *packet) directAfter(state State) State {
	switch {
	case p.flags&RST != 0:
		return Reset
	case p.begins():
		if state == Answered {
			return New
		}
		return state
	case p.flags&FIN != 0 || state == Closing:
		return Closing
	}
	return Open
}

// direct handles a packet by the row of such a flow. It returns false if the row is over.
func (s *step) direct(row *Row) bool {
	if s.isForwarded() || s.begins() && row.State > Open { // another node chose for itself
		delete(s.Pending, s.flow)
		return false
	}
	if row.State == Answered {
		s.isNew = s.begins() || !s.shakesHands()
	}
	if s.begins() || s.counts(row) {
		row.State = s.directAfter(row.State)
	}
	if seen := row.Seen; seen != s.Now && (!s.begins() || row.State == New) {
		if row.Seen = s.Now; s.due(row, seen) {
			row.Way = s.wayOf(row)
		}
	}
	s.send(row, row.Direct.String())
	return true
}

// around returns by how many bytes a packet grows on its way to a backend.
func (s *step) around(row *Row) int {
	switch row.Direct {
	case DirectIPIP:
		return s.base()
	case DirectGeneve:
		return s.base() + geneveSize
	case DirectOpt:
		return len(option(s.v4, 0, s.flow.Dest))
	}
	return 0
}

// fits reports whether a packet, by the length in its header, fits the device of a row.
func (s *step) fits(row *Row) bool {
	size := s.end() - s.l3
	if size == 0 {
		size = len(s.frame) - s.l3
	}
	return row.Way.Device == 0 || size+s.around(row) <= s.MTU[row.Way.Device]
}

// wrap sends a packet to the backend of such a flow, or returns why it cannot. XDP handles only
// packets that go back out of their device and fit. Nothing is forwarded twice.
func (s *step) wrap(row *Row, path string) Reason {
	if s.isReturned() && s.mayFallBack(row) {
		s.fallBack(row)
		return ""
	}
	if s.tunnel != nil && !s.givesBack {
		s.drop(Stray, path+", stray")
		return Stray
	}
	s.consider(row)
	s.out.Bounces = !s.behind && row.Way.Device != 0
	if s.ttl <= 1 {
		s.drop(TTL, path+", expired")
		return TTL
	}
	if !s.fits(row) {
		s.behind, s.out.Bounces = true, false
		if s.isNew {
			s.fallBack(row)
			return ""
		}
		s.drop(TooBig, path+", too big")
		return TooBig
	}
	if row.Direct == DirectOpt {
		return s.mark(row, path)
	}
	frame := bytes.Clone(s.frame)
	s.countHop(frame)
	copy(frame, row.Way.Dest[:])
	copy(frame[6:], row.Way.Source[:])
	outer := s.outer(row)
	s.out.Data = append(append(bytes.Clone(frame[:s.l3]), outer...), frame[s.l3:]...)
	s.out.Around = len(outer)
	if s.givesBack {
		s.out.Counted = append(s.out.Counted, DSRReturned)
	}
	s.depart(row, path)
	return ""
}

// depart sends an encapsulated packet on its way.
func (s *step) depart(row *Row, path string) {
	s.out.Verdict, s.out.Device = Out, row.Way.Device
	switch {
	case row.Way.Device == 0:
		s.out.Verdict, s.out.Path = Stack, path+", by the stack"
	case s.out.Bounces:
		s.out.Path = path + ", back"
	case !row.Way.known():
		s.out.Path = path + ", to be asked for"
	default:
		s.out.Path = path + ", on"
	}
}

// outer returns the headers around a packet: from this node to the backend, with the backend's port
// in an otherwise unused place.
func (s *step) outer(row *Row) []byte {
	var more []byte
	next := byte(41)
	if s.v4 {
		next = 4
	}
	if row.Direct == DirectGeneve {
		next, more = protoUDP, s.geneve(row)
	}
	ip := s.frame[s.l3:]
	ends := append(row.Source.Addr().AsSlice(), row.Dest.Addr().AsSlice()...)
	size := uint16(len(more)) + uint16(s.end()-s.l3)
	if !s.v4 {
		class := uint32(ip[0]&15)<<4 | uint32(ip[1]>>4)
		outer := binary.BigEndian.AppendUint32(nil, 6<<28|class&^3<<20|0x10000|uint32(row.Dest.Port()))
		return append(append(append(binary.BigEndian.AppendUint16(outer, size), next, 64), ends...), more...)
	}
	outer := binary.BigEndian.AppendUint16([]byte{0x45, ip[1] &^ 3}, 20+size)
	outer = append(binary.BigEndian.AppendUint16(outer, row.Dest.Port()), 0x40, 0, 64, next, 0, 0)
	outer = append(outer, ends...)
	binary.BigEndian.PutUint16(outer[10:], ^sum16(outer))
	return append(outer, more...)
}

// The UDP port of Geneve, and how many bytes it adds besides an IP header.
const (
	genevePort = 6081
	geneveSize = 8 + 16 + 14
)

// geneve returns the UDP, Geneve and Ethernet headers around a packet. The programs choose the
// source port.
func (s *step) geneve(row *Row) []byte {
	s.out.Spreads = true
	more := []byte{0, 0, genevePort >> 8, genevePort & 0xff}
	more = append(binary.BigEndian.AppendUint16(more, geneveSize+uint16(s.end()-s.l3)), 0, 0)
	more = append(more, 2, 0x40, 0x65, 0x58, 0, 0, 0, 0, 0xff, 0x1d, 0x81, 1)
	more = append(binary.BigEndian.AppendUint16(more, row.Dest.Port()), 0, 0)
	return append(append(append(more, row.Way.Dest[:]...), row.Way.Source[:]...), s.frame[12:14]...)
}

// young is the number of ticks during which a flow may be given back.
const young = 32

// mayFallBack reports whether a flow may still move to this node's address: none of it can have
// been answered.
func (s *step) mayFallBack(row *Row) bool {
	return uint16(s.Now)-row.Made <= young || s.shakesHands() && row.State == New
}

// fallBack moves a flow to this node's address: its first packet does not fit, or its backend
// cannot answer.
func (s *step) fallBack(direct *Row) {
	wrote, ok := s.witness.Pending(s.flow)
	snat, known := s.snat()
	switch {
	case !known:
		s.drop(NoAddress, "fell back, no address")
	case !ok:
		s.refuse("there is no row for a flow that began")
	case wrote.Direct != DirectOff:
		if !s.isCrowded(direct.Dest, snat) {
			s.refuse("no port was found")
		}
		if s.drop(NoPort, "fell back, no port"); !s.isReturned() {
			s.behind = true // XDP has left it to tc
			s.nobody()
		}
	default:
		path := "fell back"
		if s.isReturned() {
			path = "taken back"
		}
		s.goOn(s.enterBoth(Backend{At: direct.Dest}, direct.Guarded, wrote.Source, &path), path)
	}
}
