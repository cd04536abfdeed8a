package twin

import (
	"bytes"
	"encoding/binary"
)

// answer is the answer that the sender of a dropped packet gets.
type answer uint8

const (
	answerReset answer = iota
	answerUnreachable
	answerExpired
	answerTooBig
)

// kindOf returns the ICMP type and code of an answer.
func (a answer) kindOf(v4 bool) (kind, code byte) {
	switch {
	case a == answerUnreachable && v4:
		return 3, 3
	case a == answerUnreachable:
		return 1, 4
	case a == answerExpired && v4:
		return 11, 0
	case a == answerExpired:
		return 3, 0
	case v4:
		return 3, 4
	}
	return 2, 0
}

// nobody tells the sender that there is no backend.
func (s *step) nobody() {
	s.out.Bounces = !s.behind
	if s.flow.Proto == protoTCP {
		s.answer(answerReset, 0)
	} else {
		s.answer(answerUnreachable, 0)
	}
}

// reaches reports whether the source address can be that of one host.
func (p *packet) reaches() bool {
	addr := p.flow.Source.Addr()
	if addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() {
		return false
	}
	return !p.v4 || addr.As4()[0] > 0 && addr.As4()[0] < 224
}

// end returns the offset in the frame at which the packet ends.
func (s *step) end() int {
	ip := s.frame[s.l3:]
	if s.v4 {
		return s.l3 + int(binary.BigEndian.Uint16(ip[2:]))
	}
	return s.l3 + 40 + int(binary.BigEndian.Uint16(ip[4:]))
}

// answer makes the answer to a dropped packet.
func (s *step) answer(a answer, mtu int) {
	end := s.end()
	// A host answers whole packets only, a router each fragment.
	host := a == answerReset || a == answerUnreachable
	if s.first && host || s.frame[0]&1 != 0 || !s.reaches() || end > len(s.frame) || end < s.l4+8 {
		s.out.Path += ", not to be answered"
		return
	}
	var body []byte
	if a == answerReset {
		if body = s.reset(end); body == nil {
			s.out.Path += ", not to be answered"
			return
		}
		s.out.Path += ", reset"
	} else {
		body = s.complaint(a, end, mtu)
		s.out.Limited = true
		s.out.Path += ", told"
	}
	s.out.Verdict, s.out.Data, s.out.Device = Out, body, s.device
}

// reset returns the frame that answers a TCP segment, RFC 9293, 3.10.7.1.
func (s *step) reset(end int) []byte {
	if len(s.frame) <= s.l4+12 {
		return nil
	}
	payload := s.l4 + int(s.frame[s.l4+12]>>4)*4
	if payload > end {
		return nil
	}
	size := uint32(end - payload)
	for _, flag := range []byte{SYN, FIN} {
		if s.flags&flag != 0 {
			size++
		}
	}
	tcp := binary.BigEndian.AppendUint16(nil, s.flow.Dest.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, s.flow.Source.Port())
	if s.flags&ACK != 0 {
		tcp = append(binary.BigEndian.AppendUint32(tcp, s.ack), 0, 0, 0, 0, 0x50, RST)
	} else {
		tcp = append(binary.BigEndian.AppendUint32(append(tcp, 0, 0, 0, 0), s.seq+size), 0x50, RST|ACK)
	}
	tcp = append(tcp, 0, 0, 0, 0, 0, 0)
	ends := s.turned()
	binary.BigEndian.PutUint16(tcp[16:], ^sum16(pseudo(ends[0], ends[1], len(tcp), protoTCP), tcp))
	return s.enclose(tcp, protoTCP, 0)
}

// complaint returns the frame with an ICMP error about the packet, quoting as much of it as
// allowed.
func (s *step) complaint(a answer, end, mtu int) []byte {
	most, proto, tos := 1280-40-8, byte(protoICMPv6), byte(0)
	if s.v4 {
		most, proto, tos = 576-20-8, protoICMP, 0xc0
	}
	kind, code := a.kindOf(s.v4)
	icmp := append([]byte{kind, code, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, s.frame[s.l3:min(end, s.l3+most)]...)
	sum := sum16(icmp)
	if !s.v4 {
		ends := s.turned()
		sum = sum16(pseudo(ends[0], ends[1], len(icmp), proto), icmp)
	}
	binary.BigEndian.PutUint16(icmp[2:], ^sum)
	return s.enclose(icmp, proto, tos)
}

// turned returns the addresses of an answer, source first.
func (s *step) turned() [2][]byte {
	return [2][]byte{s.flow.Dest.Addr().AsSlice(), s.flow.Source.Addr().AsSlice()}
}

// enclose puts the link and IP headers in front of an answer.
func (s *step) enclose(body []byte, proto, tos byte) []byte {
	frame := append(append(bytes.Clone(s.frame[6:12]), s.frame[:6]...), s.frame[12:s.l3]...)
	ends := s.turned()
	if s.v4 {
		ip := []byte{0x45, tos, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0}
		ip = append(append(ip, ends[0]...), ends[1]...)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(body)))
		binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
		return append(append(frame, ip...), body...)
	}
	ip := append(binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(body))), proto, 64)
	return append(append(append(append(frame, ip...), ends[0]...), ends[1]...), body...)
}

// echo answers a ping to an address that answers pings.
func (s *step) echo() {
	frame := bytes.Clone(s.frame)
	request, reply := byte(128), byte(129)
	if s.v4 {
		request, reply = 8, 0
	}
	icmp := frame[s.l4:]
	if s.at == leaves || s.at == toPod || s.first || s.l4 != s.l3+s.base() || icmp[0] != request || icmp[1] != 0 || !s.reaches() || !s.Pings[s.flow.Dest.Addr()] {
		s.pass("message, nobody's")
		return
	}
	before := bytes.Clone(icmp[:2])
	icmp[0] = reply
	resum(icmp[2:4], before, icmp[:2])
	copy(frame[copy(frame, s.frame[6:12]):], s.frame[:6])
	ends := s.turned()
	s.replaceEnds(frame, s.l3, ends[0], ends[1])
	ip := frame[s.l3:]
	if s.v4 {
		before = bytes.Clone(ip[8:10])
		ip[8] = 64
		resum(ip[10:12], before, ip[8:10])
	} else {
		ip[7] = 64
	}
	s.out = Outcome{Verdict: Out, Data: frame, Device: s.device, Bounces: !s.behind, Path: "ping answered", Inner: s.out.Inner}
}
