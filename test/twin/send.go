package twin

import (
	"bytes"
	"encoding/binary"
)

// The reasons that packets are counted as here.
const (
	FragmentCut Reason = "fragment"
	TTL         Reason = "ttl"
	TooBig      Reason = "too-big"
)

// everyLink is a size that fits every link.
const everyLink = 576

// send sends a TCP or UDP packet along the way of a row. It tells the sender if the packet cannot
// go on.
func (s *step) send(row *Row, path string) {
	if s.first && s.flow.Proto == protoSCTP && (s.flow.Source.Port() != row.Source.Port() || s.flow.Dest.Port() != row.Dest.Port()) {
		s.drop(FragmentCut, "first fragment of SCTP")
		return
	}
	if s.first {
		s.datagrams[s.datagram()] = s.flow
		s.remembered = true
		if s.serve() {
			if s.isNew { // and is recorded once more when it comes in again
				row.State = Answered
			}
			return
		}
		s.out.Detours = true
	}
	s.goOn(row, path)
}

// goOn does that, once it is known that no fragments wait for the packet.
func (s *step) goOn(row *Row, path string) {
	var reason Reason
	if row.Direct != DirectOff {
		reason = s.wrap(row, path)
	} else {
		frame := bytes.Clone(s.frame)
		s.readdress(frame, row)
		reason = s.way(frame, row, path)
		s.ignoreBehind(row)
	}
	switch reason {
	case TTL:
		s.answer(answerExpired, 0)
	case TooBig:
		s.answer(answerTooBig, s.MTU[row.Way.Device]-s.around(row))
	}
}

// way sends a translated packet on, or returns why it cannot.
func (s *step) way(frame []byte, row *Row, path string) Reason {
	s.out.Verdict, s.out.Data, s.out.Path = Stack, frame, path
	if s.at != comesIn || row.Way.Device == 0 {
		return ""
	}
	s.consider(row)
	s.out.Bounces = !s.behind
	if s.ttl <= 1 {
		s.drop(TTL, path+", expired")
		return TTL
	}
	if s.tooBig(row) {
		if s.whole {
			s.drop(TooBig, path+", too big")
			return TooBig
		}
		s.cutUp(frame, row)
		return ""
	}
	s.out.Verdict, s.out.Device = Out, row.Way.Device
	copy(frame, row.Way.Dest[:])
	copy(frame[6:], row.Way.Source[:])
	s.countHop(frame)
	switch {
	case s.out.Bounces:
		s.out.Path += ", back"
	case !row.Way.known():
		s.out.Path += ", to be asked for"
	default:
		s.out.Path += ", on"
	}
	return ""
}

// tooBig reports whether a packet does not fit the link that it goes on by. All parts of a datagram
// go the same way, whatever their size.
func (s *step) tooBig(row *Row) bool {
	link := s.MTU[row.Way.Device]
	if !s.whole && (s.first || s.content == fragment) {
		return link < s.MTU[s.device]
	}
	return len(s.frame) > 14+everyLink && len(s.frame) > 14+link
}

// cutUp leaves a packet to the stack, which fragments it. It takes none from another host with an
// address of this node; such a packet comes in by the loopback device once more.
func (s *step) cutUp(frame []byte, row *Row) {
	s.out.Path += ", to be cut up"
	if _, own := s.Addresses[row.Source.Addr()]; own {
		s.out.Path += " on lo"
		s.out.Verdict = Out
		clear(frame[:12])
	}
}

// countHop decrements the TTL or hop limit.
func (s *step) countHop(frame []byte) {
	ip := frame[s.l3:]
	if !s.v4 {
		ip[7]--
		return
	}
	before := bytes.Clone(ip[8:10])
	ip[8]--
	resum(ip[10:12], before, ip[8:10])
}

// readdress writes the addresses and ports of a row into a packet. A UDP packet without a checksum
// keeps none.
func (s *step) readdress(frame []byte, row *Row) {
	before := s.replaceEnds(frame, s.l3, row.Source.Addr().AsSlice(), row.Dest.Addr().AsSlice())
	ports := bytes.Clone(frame[s.l4 : s.l4+4])
	binary.BigEndian.PutUint16(frame[s.l4:], row.Source.Port())
	binary.BigEndian.PutUint16(frame[s.l4+2:], row.Dest.Port())
	if s.flow.Proto == protoSCTP {
		resumSCTP(frame, s.l4, s.end(), ports)
		return
	}
	check := frame[s.sumAt() : s.sumAt()+2]
	resumPorted(check, s.flow.Proto, append(before, ports...), append(bytes.Clone(endsOf(frame[s.l3:])), frame[s.l4:s.l4+4]...))
}

// resumPorted updates the TCP or UDP checksum. UDP writes a zero checksum as 0xffff, because zero
// means none.
func resumPorted(check []byte, proto uint8, old, new []byte) {
	if proto == protoUDP && check[0]|check[1] == 0 {
		return
	}
	resum(check, old, new)
	if proto == protoUDP && check[0]|check[1] == 0 {
		check[0], check[1] = 0xff, 0xff
	}
}

// replaceEnds writes the addresses in an IP header, updates its checksum if there is one, and
// returns the old addresses.
func (s *step) replaceEnds(frame []byte, at int, source, dest []byte) []byte {
	ip := frame[at:]
	ends := endsOf(ip)
	before := bytes.Clone(ends)
	copy(ends[copy(ends, source):], dest)
	if s.v4 {
		resum(ip[10:12], before, ends)
	}
	return before
}
