package twin

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// The protocols that are parsed.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

// The SCTP chunks that begin or end an association.
const (
	chunkInit             = 1
	chunkInitAck          = 2
	chunkAbort            = 6
	chunkShutdown         = 7
	chunkShutdownAck      = 8
	chunkShutdownComplete = 14
)

// The TCP flags that matter.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	ACK = 0x10
)

// How much is parsed; packets with more headers are left to the stack.
const (
	mostTags       = 2
	mostExtensions = 6
	deepest        = 1024
)

// content is what a packet has after the IP headers.
type content uint8

const (
	other    content = iota // no protocol with ports, or too little of it
	ported                  // TCP, UDP or SCTP
	cut                     // TCP or SCTP that ends right after the ports
	message                 // ICMP of the packet's family
	fragment                // a later fragment
)

// packet is what the headers of a frame say.
type packet struct {
	content content
	flow    Flow
	l3, l4  int
	flags   byte // of TCP, or the flags that correspond to the first SCTP chunk
	ttl     byte
	seq     uint32 // for SCTP the tag that is requested
	ack     uint32 // for SCTP the tag of the packet
	id      uint32 // identification of the datagram that a fragment belongs to
	tagged  bool
	v4      bool
	whole   bool // routers must not fragment it
	first   bool // the first of several fragments
	short   bool // it ends within a header
}

// read parses a frame.
func read(frame []byte) packet {
	if len(frame) < 14 {
		return packet{}
	}
	var p packet
	at, kind := 14, binary.BigEndian.Uint16(frame[12:])
	for tags := 0; tags < mostTags && (kind == 0x8100 || kind == 0x88a8); tags++ {
		if len(frame) < at+4 {
			return p
		}
		kind = binary.BigEndian.Uint16(frame[at+2:])
		at += 4
		p.tagged = true
	}
	tagged := p.tagged
	switch kind {
	case 0x0800:
		p = readIPv4(frame, at)
	case 0x86dd:
		p = readIPv6(frame, at)
	}
	p.tagged = tagged
	return p
}

func readIPv4(frame []byte, at int) packet {
	if len(frame) < at+20 || frame[at]>>4 != 4 || frame[at]&15 < 5 {
		return packet{}
	}
	ip := frame[at:]
	place := binary.BigEndian.Uint16(ip[6:])
	p := packet{l3: at, v4: true, whole: place&0x4000 != 0, first: place&0x2000 != 0, ttl: ip[8],
		id: uint32(binary.BigEndian.Uint16(ip[4:]))}
	p.flow = Flow{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), 0), netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), 0), ip[9],
	}
	if place&0x1fff != 0 {
		p.content = fragment
		return p
	}
	p.readPorts(frame, at+int(ip[0]&15)*4)
	return p
}

func readIPv6(frame []byte, at int) packet {
	if len(frame) < at+40 || frame[at]>>4 != 6 {
		return packet{}
	}
	ip := frame[at:]
	p := packet{l3: at, whole: true, ttl: ip[7]}
	p.flow.Source = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[8:])), 0)
	p.flow.Dest = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[24:])), 0)
	if p.flow.Source.Addr().Is4In6() || p.flow.Dest.Addr().Is4In6() {
		return packet{l3: at} // such addresses never appear on the wire
	}
	next := ip[6]
	at += 40
	for range mostExtensions {
		if next != 0 && next != 43 && next != 44 && next != 60 {
			break
		}
		if len(frame) < at+8 {
			p.short = true
			return p
		}
		size := (int(frame[at+1]) + 1) * 8
		if next == 44 {
			size = 8
			place := binary.BigEndian.Uint16(frame[at+2:])
			p.id, p.first = binary.NativeEndian.Uint32(frame[at+4:]), place&1 != 0
			if place&0xfff8 != 0 {
				p.content = fragment
				return p
			}
		}
		next = frame[at]
		at += size
		if at > deepest {
			return p
		}
	}
	p.flow.Proto = next
	p.readPorts(frame, at)
	return p
}

// readPorts parses what all parsed protocols have at their start.
func (p *packet) readPorts(frame []byte, at int) {
	ofFamily := uint8(protoICMPv6)
	if p.v4 {
		ofFamily = protoICMP
	}
	p.l4 = at
	if at > deepest {
		return
	}
	if len(frame) < at+8 {
		p.short = slices.Contains([]uint8{ofFamily, protoTCP, protoUDP, protoSCTP}, p.flow.Proto)
		return
	}
	l4 := frame[at:]
	switch p.flow.Proto {
	case ofFamily:
		p.content = message
		return
	case protoUDP:
		p.content = ported
	case protoTCP:
		if p.content = cut; len(l4) >= 20 {
			p.content = ported
			p.seq, p.ack, p.flags = binary.BigEndian.Uint32(l4[4:]), binary.BigEndian.Uint32(l4[8:]), l4[13]
		}
	case protoSCTP:
		if p.content = cut; len(l4) >= 12 {
			p.content = ported
			p.readAssociation(l4)
		}
	default:
		return
	}
	p.flow.Source = netip.AddrPortFrom(p.flow.Source.Addr(), binary.BigEndian.Uint16(l4))
	p.flow.Dest = netip.AddrPortFrom(p.flow.Dest.Addr(), binary.BigEndian.Uint16(l4[2:]))
}

// readAssociation parses an SCTP packet.
func (p *packet) readAssociation(l4 []byte) {
	p.ack = binary.BigEndian.Uint32(l4[4:])
	if len(l4) == 12 {
		return
	}
	switch l4[12] {
	case chunkInit:
		p.flags = SYN
	case chunkInitAck:
		p.flags = SYN | ACK
	case chunkAbort:
		p.flags = RST
	case chunkShutdown, chunkShutdownAck, chunkShutdownComplete:
		p.flags = FIN | ACK
	default:
		p.flags = ACK
	}
	if p.flags&SYN != 0 && len(l4) >= 20 {
		p.seq = binary.BigEndian.Uint32(l4[16:])
	}
}

// base returns the length of an IP header without options.
func (p *packet) base() int {
	if p.v4 {
		return 20
	}
	return 40
}

// shakesHands reports whether the protocol of the packet begins with a handshake.
func (p *packet) shakesHands() bool { return p.flow.Proto == protoTCP || p.flow.Proto == protoSCTP }

// begins reports whether a packet begins a connection.
func (p *packet) begins() bool { return p.flags&(SYN|ACK|RST) == SYN }

// welcomes reports whether a packet is a server's answer to the beginning of a connection.
func (p *packet) welcomes() bool { return p.flags&(SYN|ACK|RST) == SYN|ACK }

// sumAt returns the offset of the TCP or UDP checksum.
func (p *packet) sumAt() int {
	if p.flow.Proto == protoTCP {
		return p.l4 + 16
	}
	return p.l4 + 6
}
