package twin

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// session is a connection between honest ends, or an exchange of datagrams. Its client dials a
// frontend, or a server's own address. Each call of step sends one packet.
type session struct {
	id     int
	client netip.AddrPort
	front  netip.AddrPort
	proto  uint8
	at     end       // where the client is
	server end       // where the first packet went
	seen   Flow      // what the server sees
	next   [2]uint32 // the next sequence number of client and server
	stage  int
	dead   bool
	met    string    // the kind of its last packet, for coverage
	rest   []byte    // what is still to be sent of a datagram
	got    [2][]byte // what client and server have got last, whole or as a first fragment
}

// line is what is sent next: by the client, or by the server.
type line struct {
	reply bool
	flags byte
	size  int
	how   manner
}

// manner is how something is sent.
type manner uint8

const (
	inOne   manner = iota
	asFirst        // the first fragment of a datagram
	asRest         // the other one
	tooBig         // an error about what has come last
)

// firstPart is how many bytes of a datagram its first fragment has.
const firstPart = 32

func scripts() map[uint8][]line {
	stream := []line{{flags: SYN}, {reply: true, flags: SYN | ACK}, {flags: ACK}, {false, ACK, 40, inOne}, {true, ACK, 90, inOne}, {reply: true, how: tooBig},
		{false, ACK, 7, inOne}, {true, ACK, 9, inOne}, {false, ACK, 70, inOne}, {true, ACK, 300, inOne}, {how: tooBig}, {true, ACK, 301, inOne},
		{false, ACK, 71, inOne}, {true, ACK, 302, inOne}, {false, ACK, 0, inOne}, {true, ACK, 303, inOne}, {flags: FIN | ACK}, {reply: true, flags: FIN | ACK}, {flags: ACK}}
	return map[uint8][]line{
		protoTCP: stream, protoSCTP: stream,
		protoUDP: {{size: 30}, {true, 0, 60, inOne}, {size: 31}, {how: tooBig}, {reply: true, how: tooBig}, {true, 0, 61, inOne}, {false, 0, 90, asFirst},
			{how: asRest}, {true, 0, 110, asFirst}, {reply: true, how: asRest}, {size: 32}, {true, 0, 62, inOne}},
	}
}

// over reports whether a session has nothing more to send.
func (s *session) over() bool { return s.dead || s.stage >= len(scripts()[s.proto]) }

// isBegun reports whether a session has begun and is not established.
func (s *session) isBegun() bool { return s.stage > 0 && s.stage < 3 }

// begins reports whether a session, which a packet is about, has begun and is not established.
func (s *session) begins(about Flow) bool {
	of := func(end netip.AddrPort) bool { return end == s.client || end == s.seen.Source }
	return s.proto != protoUDP && s.isBegun() && (of(about.Source) || of(about.Dest))
}

// isGuessed reports whether a packet that somebody else has made up has a sequence number or an acknowledgment near
// the session's. Nobody can tell it from a real one; few of 65,536 guesses are, which the table of what attackers
// can do says.
func (s *session) isGuessed(p packet) bool {
	near := func(guess, is uint32) bool { return uint16(guess>>16-is>>16+10) <= 20 } // in units of 64 KiB, as programs compare
	if s.proto != protoTCP || p.flow.Proto != protoTCP {
		return false
	}
	for who, ends := range [][2]netip.AddrPort{{s.client, s.front}, {s.front, s.client}} {
		seen := s.seen
		if who == 1 {
			seen.Source, seen.Dest = seen.Dest, seen.Source
		}
		is := p.flow.Source == ends[0] && p.flow.Dest == ends[1] || p.flow.Source == seen.Source && p.flow.Dest == seen.Dest
		if is && (near(p.seq, s.next[who]) || near(p.ack, s.next[1-who])) {
			return true
		}
	}
	return false
}

// class returns what kind of packet the client has got, for coverage.
func (s *session) class() string {
	proto := map[uint8]string{protoTCP: "TCP", protoUDP: "UDP", protoSCTP: "SCTP"}[s.proto]
	switch {
	case s.at.pod > 0 && s.server.device > 0 && isMask(s.seen.Source.Addr()):
		return "masqueraded, " + proto
	case s.at.device > 0 && s.server.there != s.at.there && s.seen.Source == s.client:
		return fmt.Sprintf("forwarded to %s, %s", s.server, proto)
	case s.seen.Dest == s.front:
		return "by the server's own address, " + proto
	}
	return "by a service, " + proto
}

// step sends the next packet of the session, and returns what its receiver sees.
func (s *session) step(n *nodes) (string, error) {
	l := scripts()[s.proto][s.stage]
	from := s.at
	if l.reply {
		from = s.server
	}
	to, err := n.travel(s.frame(n, l, from), from, 0)
	if err != nil {
		return "", err
	}
	if to.frame == nil {
		s.dead, s.met = true, "lost"
		return "nothing", nil
	}
	if s.stage == 0 {
		s.server, s.seen = end{pod: to.pod, device: to.device, node: to.node, there: to.there}, read(to.frame).flow
	}
	s.stage++
	return fmt.Sprintf("at %s: %s", to, s.look(l, to.frame)), nil
}

// frame makes the next packet.
func (s *session) frame(n *nodes, l line, from end) []byte {
	switch l.how {
	case asRest:
		return s.rest
	case tooBig:
		e := s.complaint(l, from)
		n.here.address(&e, from)
		return e.bytes()
	}
	d := s.draft(l)
	n.here.address(&d, from)
	if l.how == inOne {
		return d.bytes()
	}
	d.id = uint16(s.id%15*2 + s.receiver(l.reply)) // attackers use the same
	var first []byte
	first, s.rest = d.cutUp(firstPart)
	return first
}

// draft makes a packet with ports.
func (s *session) draft(l line) draft {
	d := draft{ttl: 64, whole: true, proto: s.proto, flags: l.flags, payload: make([]byte, l.size), seq: s.next[0], ack: s.next[1]}
	for i := range d.payload {
		d.payload[i] = byte(s.id + s.stage + i)
	}
	who := 0
	if d.from, d.to = s.client, s.front; l.reply {
		d.from, d.to, d.seq, d.ack = s.seen.Dest, s.seen.Source, s.next[1], s.next[0]
		who = 1
	}
	if s.proto == protoSCTP { // the tag of the receiver, and the one that is requested
		d.seq, d.ack = uint32(s.id)*2+1, map[bool]uint32{true: 0, false: uint32(s.id)*2 + 1}[s.stage == 0]
	} else if l.flags&ACK == 0 {
		d.ack = 0
	}
	if s.next[who] += uint32(l.size); l.flags&(SYN|FIN) != 0 {
		s.next[who]++
	}
	return d
}

// complaint says that what an end has got last is too big. Pods and nodes say that themselves, for hosts
// outside a router does.
func (s *session) complaint(l line, from end) draft {
	frame := s.got[s.receiver(!l.reply)]
	p := read(frame)
	e := draft{ttl: 64, proto: protoICMPv6, from: netip.AddrPortFrom(p.flow.Dest.Addr(), 0), to: netip.AddrPortFrom(p.flow.Source.Addr(), 0)}
	kind := []byte{2, 0, 0, 0, 0, 0, 1280 >> 8, 0}
	if p.v4 {
		e.proto, kind = protoICMP, []byte{3, 4, 0, 0, 0, 0, 1280 >> 8, 0}
	}
	if from.device > 0 && from.device != tunnelDevice {
		strangers := pools()[p.v4].strangers
		e.from = netip.AddrPortFrom(strangers[len(strangers)-1], 0)
	}
	e.payload = append(kind, frame[p.l3:min(len(frame), p.l3+100)]...)
	return e
}

// receiver returns who gets a line: the client, which is the first, or the server.
func (s *session) receiver(reply bool) int {
	if reply {
		return 0
	}
	return 1
}

// look returns what the receiver sees, and notes its kind.
func (s *session) look(l line, frame []byte) string {
	p, who := read(frame), s.receiver(l.reply)
	theirs := Flow{s.seen.Source, s.seen.Dest, s.proto}
	if l.reply {
		theirs = Flow{s.front, s.client, s.proto}
	}
	switch {
	case l.how == tooBig:
		return s.hears(p, frame, Flow{theirs.Dest, theirs.Source, s.proto})
	case l.how == asRest:
		return s.joins(who, p, frame)
	}
	s.got[who] = frame
	if s.met = "asked"; l.reply {
		s.met = "answered, " + s.class()
	}
	if p.flow != theirs {
		s.met = "answered by another"
	}
	return fmt.Sprintf("%x", s.canonical(frame))
}

// hears looks at an error, which must be about what its receiver has sent.
func (s *session) hears(p packet, frame []byte, own Flow) string {
	var about packet
	switch at := p.l4 + 8; {
	case p.content != message:
	case p.v4:
		about = readIPv4(frame, at)
	default:
		about = readIPv6(frame, at)
	}
	if s.met = "an error, " + s.class(); about.flow != own || !sound(frame) {
		s.met = "an error about what is another's"
		return fmt.Sprintf("%x about what is another's", frame)
	}
	return fmt.Sprintf("%s says of what is its own %x", p.flow.Source, frame[p.l4:p.l4+8])
}

// joins puts the fragments of a datagram together.
func (s *session) joins(who int, p packet, frame []byte) string {
	first := read(s.got[who])
	whole := slices.Clone(s.got[who][first.l4:])
	if p.content != fragment || p.flow.Source.Addr() != first.flow.Source.Addr() || p.flow.Dest.Addr() != first.flow.Dest.Addr() || p.id != first.id {
		s.met = "a fragment of another datagram"
		return fmt.Sprintf("%x, not of %x", frame, s.got[who])
	}
	later := frame[p.l3+20:]
	if !p.v4 {
		later = frame[p.l3+48:]
	}
	whole = append(whole, later...)
	half := [][]byte{first.flow.Source.Addr().AsSlice(), first.flow.Dest.Addr().AsSlice()}
	if s.met = "fragments, " + s.class(); sum16(pseudo(half[0], half[1], len(whole), s.proto), whole) != 0xffff {
		s.met = "a datagram that is wrong"
	}
	return fmt.Sprintf("%x, %s", later, s.met)
}

// canonical returns a frame without what the programs may choose: the port that the node lends to
// the session, which must stay the same. The checksum of a datagram is looked at when it is whole.
func (s *session) canonical(frame []byte) []byte {
	p := read(frame)
	if p.content != ported {
		return frame
	}
	frame = slices.Clone(frame)
	lent := func(at netip.AddrPort) bool {
		return isMask(at.Addr()) && at.Port() >= lentFirst && at.Port() <= lentLast
	}
	if lent(p.flow.Source) && p.flow.Source == s.seen.Source && (p.first || sound(frame)) {
		binary.BigEndian.PutUint16(frame[p.l4:], 0)
		switch at := p.l4 + map[uint8]int{protoTCP: 16, protoUDP: 6, protoSCTP: 8}[p.flow.Proto]; p.flow.Proto {
		case protoSCTP:
			clear(frame[at : at+4])
		default:
			clear(frame[at : at+2])
		}
	}
	return frame
}
