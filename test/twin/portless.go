package twin

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// The reasons that packets are counted as here.
const (
	NoService Reason = "no-service"
)

// datagram returns what identifies the datagram of a fragment. In IPv6 each fragment may name
// another protocol.
func (s *step) datagram() datagram {
	d := datagram{s.flow.Source.Addr(), s.flow.Dest.Addr(), s.id, 0}
	if s.v4 {
		d.proto = s.flow.Proto
	}
	return d
}

// continued handles a later fragment, which goes where the flow of the first fragment goes.
func (s *step) continued() {
	flow, ok := s.datagrams[s.datagram()]
	row, torn := s.find(flow)
	if s.at == fromPod && (!ok && !s.isMessage() || ok && row == nil && flow.Proto != protoICMP && flow.Proto != protoICMPv6) && s.isOfServices(s.flow.Dest.Addr()) {
		s.drop(NoService, "fragment, no service")
		return
	}
	if !ok {
		s.wait()
		return
	}
	switch {
	case row == nil:
		s.pass("fragment, of a flow that is gone")
		return
	case torn:
		s.drop(FlowRace, "fragment, torn")
		return
	case !row.isAt(s.at):
		s.elsewhere(row, "fragment")
		return
	}
	if row.Direct != DirectOff {
		s.wrap(row, "fragment, "+row.Direct.String())
		return
	}
	frame := bytes.Clone(s.frame)
	s.replaceEnds(frame, s.l3, row.Source.Addr().AsSlice(), row.Dest.Addr().AsSlice())
	s.way(frame, row, "fragment")
	s.waitBehind(row)
}

// isMessage reports whether a later fragment is of an ICMP message.
func (s *step) isMessage() bool {
	return s.v4 && s.flow.Proto == protoICMP || !s.v4 && s.flow.Proto == protoICMPv6
}

// cutOff handles a packet that ends within the TCP header: if it is a first fragment of a known
// flow, it cannot be translated.
func (s *step) cutOff() {
	known, _ := s.find(s.flow)
	_, dialed := s.frontend(s.flow, false)
	if s.first && (known != nil || dialed) {
		s.drop(FragmentCut, "cut off")
		return
	}
	s.pass("cut off, nobody's")
}

// message handles ICMP. An error about a packet goes the way of the answers to that packet.
func (s *step) message() {
	kind := s.frame[s.l4]
	isError := kind >= 1 && kind <= 4
	if s.v4 {
		isError = kind == 3 || kind == 11 || kind == 12
	}
	var quote packet
	if at := s.l4 + 8; isError && !s.first && at <= deepest {
		if quote = readIPv6(s.frame, at); s.v4 {
			quote = readIPv4(s.frame, at)
		}
	}
	if quote.content != ported && quote.content != cut || quote.l4+8 > s.end() {
		s.echo()
		return
	}
	about := Flow{quote.flow.Dest, quote.flow.Source, quote.flow.Proto}
	row, torn := s.find(about)
	switch {
	case about.Dest.Addr() != s.flow.Dest.Addr():
		s.pass("error to another than the sender")
		return
	case row == nil:
		s.pass("error, nobody's")
		return
	case torn:
		s.drop(FlowRace, "error, torn")
		return
	case !row.isAt(s.at):
		s.elsewhere(row, "error")
		return
	}
	path := "error"
	if row.Direct != DirectOff {
		s.wrap(row, "error, "+row.Direct.String())
		return
	}
	if row.Reply {
		path = "error to the client"
	}
	s.way(s.readdressError(&quote, row), row, path)
}

// readdressError returns the error with the addresses of a row, and quotes the packet as the
// receiver of the error sent it.
func (s *step) readdressError(quote *packet, row *Row) []byte {
	frame := bytes.Clone(s.frame)
	s.replaceEnds(frame, quote.l3, row.Dest.Addr().AsSlice(), row.Source.Addr().AsSlice())
	ports := frame[quote.l4 : quote.l4+4]
	before := append(bytes.Clone(endsOf(s.frame[quote.l3:])), ports...)
	binary.BigEndian.PutUint16(ports, row.Dest.Port())
	binary.BigEndian.PutUint16(ports[2:], row.Source.Port())
	stop := min(len(frame), s.end())
	if quote.flow.Proto == protoSCTP && quote.l4+12 <= stop {
		resumSCTP(frame, quote.l4, (&step{packet: *quote, frame: s.frame}).end(), before[len(before)-4:])
	} else if at := quote.sumAt(); quote.flow.Proto != protoSCTP && at+2 <= stop {
		after := append(bytes.Clone(endsOf(frame[quote.l3:])), ports...)
		resumPorted(frame[at:at+2], quote.flow.Proto, before, after)
	}
	source := row.Source.Addr()
	// If the destination has the same address on both sides, the error keeps its own source, such as
	// that of a router in between.
	if quote.flow.Dest.Addr() == source {
		source = s.flow.Source.Addr()
	}
	s.replaceEnds(frame, s.l3, source.AsSlice(), row.Dest.Addr().AsSlice())
	s.resumMessage(frame, source, row.Dest.Addr())
	return frame
}

// resumMessage updates the ICMP checksum for the changes in the message, and for the addresses that
// ICMPv6 covers.
func (s *step) resumMessage(frame []byte, source, dest netip.Addr) {
	old, new := bytes.Clone(s.frame[s.l4+8:]), bytes.Clone(frame[s.l4+8:])
	if len(old)%2 == 1 {
		old, new = append(old, 0), append(new, 0)
	}
	if !s.v4 {
		old = append(old, endsOf(s.frame[s.l3:])...)
		new = append(append(new, source.AsSlice()...), dest.AsSlice()...)
	}
	resum(frame[s.l4+2:s.l4+4], old, new)
}
