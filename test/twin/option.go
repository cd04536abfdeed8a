package twin

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// The option by which a packet says what address and port its client dialed, see docs/dsr.md.
const (
	option4     = 158
	option6     = 0x5e
	mostHeader4 = 60
)

// option returns the IPv4 option, or an IPv6 destination options header with the option.
func option(v4 bool, next byte, dialed netip.AddrPort) []byte {
	if v4 {
		return append(binary.BigEndian.AppendUint16([]byte{option4, 8}, dialed.Port()), dialed.Addr().AsSlice()...)
	}
	to := dialed.Addr().As16()
	return append(binary.BigEndian.AppendUint16([]byte{next, 2, 1, 0, option6, 18}, dialed.Port()), to[:]...)
}

// mayHaveOption reports whether a flow may use the option, judging by the options of its first
// packet.
func (s *step) mayHaveOption() bool {
	own := s.l4 - s.l3
	if s.v4 {
		return own+8 <= mostHeader4
	}
	return own == 40 || s.first && own == 48
}

// isInside reports whether the client is inside the cluster: nobody gives back what comes with an
// option. IPv4 addresses are matched as IPv6, as ::ffff:0:0/96.
func (s *step) isInside() bool {
	client := s.flow.Source.Addr()
	mapped := netip.AddrFrom16(client.As16())
	return slices.ContainsFunc(s.Inside, func(p netip.Prefix) bool { return p.Contains(client) || p.Contains(mapped) })
}

// hasRoom reports whether a packet has room for the option, which precedes all its own options
// except hop-by-hop ones.
func (s *step) hasRoom() bool {
	ip := s.frame[s.l3:]
	if s.v4 {
		return int(ip[0]&15)*4+8 <= mostHeader4
	}
	return ip[6] != 0
}

// mark sends a packet to its backend, from the client, with the dialed address and port in the
// option.
func (s *step) mark(row *Row, path string) Reason {
	if !s.hasRoom() {
		s.behind, s.out.Bounces = true, false
		if s.isNew { // in place of a first packet that was to come in again, and had room
			s.fallBack(row)
			return ""
		}
		s.drop(TooBig, path+", no room")
		return ""
	}
	dialed := s.flow.Dest
	if known, ok := s.datagrams[s.datagram()]; ok && s.content == fragment {
		dialed = known.Dest
	}
	frame := s.pointed(row.Dest)
	if row.Way.Device != 0 {
		s.countHop(frame)
		copy(frame, row.Way.Dest[:])
		copy(frame[6:], row.Way.Source[:])
	}
	ip, header := frame[s.l3:], s.l3+s.base()
	more := option(s.v4, ip[6], dialed)
	if s.v4 {
		s.changeHeader(frame, len(more), more, nil)
	} else {
		ip[6] = 60
		changeLength(ip[4:6], len(more), 0)
	}
	s.out.Data = append(append(bytes.Clone(frame[:header]), more...), frame[header:]...)
	s.out.Marked = true
	s.depart(row, path)
	return ""
}

// changeHeader changes the length of an IPv4 header for an option that is added or removed, and its
// checksum.
func (s *step) changeHeader(frame []byte, by int, comes, goes []byte) {
	ip := frame[s.l3:]
	before := append(bytes.Clone(ip[:4]), goes...)
	ip[0] = byte(int(ip[0]) + by/4)
	changeLength(ip[2:4], by, len(ip)+by)
	after := append(bytes.Clone(ip[:4]), comes...)
	size := max(len(before), len(after))
	before, after = append(before, make([]byte, size-len(before))...), append(after, make([]byte, size-len(after))...)
	resum(ip[10:12], before, after)
}

// changeLength changes a length field by by. Zero stands for everything there is, in merged packets
// whose length does not fit the field: the field is zero until the option is removed.
func changeLength(length []byte, by, whole int) {
	size := int(binary.BigEndian.Uint16(length))
	switch {
	case size != 0:
		size += by
	case by < 0:
		size = whole
	}
	if by > 0 && size > 0xffff {
		size = 0
	}
	binary.BigEndian.PutUint16(length, uint16(size))
}

// pointed returns the frame with another destination. Errors and later fragments have no ports.
func (s *step) pointed(to netip.AddrPort) []byte {
	frame := bytes.Clone(s.frame)
	if s.content == ported {
		s.readdress(frame, &Row{Source: s.flow.Source, Dest: to})
		return frame
	}
	s.replaceEnds(frame, s.l3, s.flow.Source.Addr().AsSlice(), to.Addr().AsSlice())
	if s.content == message && !s.v4 {
		resum(frame[s.l4+2:s.l4+4], bytes.Clone(endsOf(s.frame[s.l3:])), bytes.Clone(endsOf(frame[s.l3:])))
	}
	return frame
}

// unmark removes the option from a packet for a backend here, and restores the dialed destination.
// A packet whose option is malformed is a stray. unmark returns false if there is no option.
func (s *step) unmark() bool {
	if s.l3 == 0 {
		return false
	}
	size, found := s.findOption()
	if !found {
		return false
	}
	s.tunnel, s.behind, s.isStray = &tunnel{mode: DirectOpt}, true, true
	header := s.l3 + s.base()
	if size == 0 || len(s.frame)-size < header {
		return true
	}
	dialed := s.readOption(s.frame[header : header+size])
	frame := bytes.Clone(s.frame)
	ip := frame[s.l3:]
	if s.v4 {
		s.changeHeader(frame, -size, nil, frame[header:header+size])
	} else {
		ip[6] = ip[40]
		changeLength(ip[4:6], -size, len(ip)-40-size)
	}
	s.frame = append(frame[:header], frame[header+size:]...)
	s.packet = read(s.frame)
	if s.content != ported && s.content != message && s.content != fragment {
		return true
	}
	if ports := s.content == ported; ports && !s.isFrontend(dialed, s.flow.Proto) || !ports && !s.isFrontends(dialed.Addr()) {
		return true
	}
	s.isStray = false
	s.tunnel.to, s.tunnel.port = s.flow.Dest.Addr(), s.flow.Dest.Port()
	s.frame = s.pointed(dialed)
	s.packet, s.out.Inner = read(s.frame), s.frame
	return true
}

// findOption looks for the option in a packet for a backend here, where nodes put it: first. size
// is 0 if the option is not as nodes write it, or comes twice. XDP leaves all of these to tc.
func (s *step) findOption() (size int, found bool) {
	ip := s.frame[s.l3:]
	if s.v4 {
		own := int(ip[0]&15)*4 - 20
		if own == 0 || len(ip) < 22 || ip[20] != option4 {
			return 0, false
		}
		if s.behind = true; !s.isHere() {
			return 0, false
		}
		if own < 8 || len(ip) < 28 || ip[21] != 8 || own > 8 && (len(ip) < 29 || ip[28] == option4) {
			return 0, true
		}
		return 8, true
	}
	if len(ip) < 48 || ip[6] != 60 || !begins6(ip[40:]) {
		return 0, false
	}
	if s.behind = true; !s.isHere() {
		return 0, false
	}
	if len(ip) < 64 || !bytes.Equal(ip[41:46], []byte{2, 1, 0, option6, 18}) || netip.AddrFrom16([16]byte(ip[48:])).Is4In6() ||
		ip[40] == 60 && (len(ip) < 72 || begins6(ip[64:])) {
		return 0, true
	}
	return 24, true
}

// begins6 reports whether a destination options header begins with the option, after padding or
// not.
func begins6(header []byte) bool {
	return header[2] == option6 || header[2] == 1 && header[3] == 0 && header[4] == option6
}

// readOption returns the dialed address and port. For a packet without ports the port is 0.
func (s *step) readOption(option []byte) netip.AddrPort {
	if s.v4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(option[4:])), binary.BigEndian.Uint16(option[2:]))
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(option[8:])), binary.BigEndian.Uint16(option[6:]))
}
