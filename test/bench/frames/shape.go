package frames

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// Kind is the kind of a packet.
type Kind string

// The kinds of packets.
const (
	UDP    Kind = "udp"
	TCPSyn Kind = "tcp-syn"
	TCPAck Kind = "tcp-ack" // with data if the size leaves room
)

const (
	ethernetSize = 14
	ipv4Size     = 20
	ipv6Size     = 40
	udpSize      = 8
	tcpSize      = 20

	// As in shape.h.
	allWords, shortWords = 10, 8
	portBits             = 12

	maxSize   = 3000 // one of the kernel's frames is a page, part of which is reserved
	firstPort = 1024

	protoTCP, protoUDP = 6, 17
)

// Shape describes packets. Their flows differ in the source: the 12 low bits of a flow's number are
// in its port, the others in the last two bytes of its address.
type Shape struct {
	Kind   Kind
	Source netip.Addr // of the first flow
	To     netip.AddrPort
	Local  net.HardwareAddr // sender
	Remote net.HardwareAddr // receiver
	Flows  int              // zero = one
	Size   int              // bytes from the Ethernet header to the end of the data; zero = the minimum
}

// layout holds the offsets within a packet.
type layout struct {
	v4                       bool
	proto                    byte
	host, l4, check, headers int
	size, words              int
}

func (s Shape) layout() layout {
	l := layout{v4: s.To.Addr().Is4(), proto: protoTCP, words: shortWords}
	if l.v4 {
		l.host, l.l4 = ethernetSize+14, ethernetSize+ipv4Size
	} else {
		l.host, l.l4 = ethernetSize+22, ethernetSize+ipv6Size
	}
	l.check, l.headers = l.l4+16, l.l4+tcpSize
	if s.Kind == UDP {
		l.proto, l.check, l.headers = protoUDP, l.l4+6, l.l4+udpSize
	}
	if l.headers > shortWords*8 {
		l.words = allWords
	}
	if l.size = s.Size; l.size == 0 {
		l.size = l.words * 8
	}
	return l
}

// check rejects shapes that cannot be made.
func (s Shape) check() error {
	l := s.layout()
	firstHost := binary.BigEndian.Uint16(lastTwo(s.Source))
	switch {
	case s.Kind != UDP && s.Kind != TCPSyn && s.Kind != TCPAck:
		return fmt.Errorf("no kind %q of packet", s.Kind)
	case !s.Source.IsValid() || !s.To.IsValid() || s.Source.Is4() != l.v4 || s.Source.Is4In6() || s.To.Addr().Is4In6():
		return fmt.Errorf("a packet from %s to %s is of no family", s.Source, s.To)
	case len(s.Local) != 6 || len(s.Remote) != 6:
		return fmt.Errorf("hardware addresses %q and %q are not of Ethernet", s.Local, s.Remote)
	case s.Kind == TCPSyn && s.Size > l.words*8:
		return fmt.Errorf("the first packet of TCP has no data, so it cannot have %d bytes; leave the size out", s.Size)
	case l.size < l.words*8 || l.size > maxSize:
		return fmt.Errorf("a size of %d is not possible; use %d to %d", l.size, l.words*8, maxSize)
	case s.Flows < 0 || int(firstHost)+s.flows()>>portBits > 0xffff:
		return fmt.Errorf("%d flows do not fit behind %s", s.Flows, s.Source)
	}
	return nil
}

func (s Shape) flows() int { return max(s.Flows, 1) }

// FlowSource returns the source of a flow, counted from 0.
func (s Shape) FlowSource(flow int) netip.AddrPort {
	b := s.Source.AsSlice()
	low := b[len(b)-2:]
	binary.BigEndian.PutUint16(low, binary.BigEndian.Uint16(low)+uint16(flow>>portBits))
	addr, _ := netip.AddrFromSlice(b) // always has the length of an address
	return netip.AddrPortFrom(addr, uint16(firstPort+flow&(1<<portBits-1)))
}

func lastTwo(a netip.Addr) []byte {
	if !a.IsValid() {
		return []byte{0, 0}
	}
	b := a.AsSlice()
	return b[len(b)-2:]
}

// Packet returns the packet of the first flow.
func (s Shape) Packet() ([]byte, error) {
	_, packet, err := s.Constant()
	if err != nil {
		return nil, err
	}
	l, source := s.layout(), s.FlowSource(0)
	copy(packet[l.host:], lastTwo(source.Addr()))
	binary.BigEndian.PutUint16(packet[l.l4:], source.Port())
	if l.v4 {
		binary.NativeEndian.PutUint16(packet[ethernetSize+10:], ^sum(packet[ethernetSize:l.l4]))
	}
	check := ^l.sumL4(packet)
	if check == 0 {
		check = 0xffff // as in the programs
	}
	binary.NativeEndian.PutUint16(packet[l.check:], check)
	return packet, nil
}

// Constant returns the shape as the constant for programs that include shape.h, and a packet with
// zeroes in place of the bytes that they write.
func (s Shape) Constant() (any, []byte, error) {
	if err := s.check(); err != nil {
		return nil, nil, fmt.Errorf("shape packets: %w", err)
	}
	l := s.layout()
	packet := make([]byte, l.size)
	s.writeEthernet(packet, l)
	s.writeIP(packet[ethernetSize:], l)
	s.writeL4(packet[l.l4:], l)
	c := framesShape{
		Flows: uint32(s.flows()), Stride: stride(s.flows()),
		FirstPort: firstPort, FirstHost: binary.BigEndian.Uint16(lastTwo(s.Source)),
		HostAt: uint16(l.host), PortAt: uint16(l.l4), L4CheckAt: uint16(l.check), L4Sum: l.sumL4(packet), Words: uint16(l.words),
	}
	if l.v4 {
		c.IpCheckAt, c.IpSum = ethernetSize+10, sum(packet[ethernetSize:l.l4])
	}
	for i := range l.words {
		c.Header[i] = binary.NativeEndian.Uint64(packet[i*8:])
	}
	return c, packet, nil
}

func (s Shape) writeEthernet(p []byte, l layout) {
	copy(p, s.Remote)
	copy(p[6:], s.Local)
	binary.BigEndian.PutUint16(p[12:], 0x86dd)
	if l.v4 {
		binary.BigEndian.PutUint16(p[12:], 0x0800)
	}
}

func (s Shape) writeIP(p []byte, l layout) {
	source, to := s.Source.AsSlice(), s.To.Addr().AsSlice()
	if l.v4 {
		p[0], p[6], p[8], p[9] = 0x45, 0x40, 64, l.proto // no options, no fragments
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		copy(p[12:], source[:2])
		copy(p[16:], to)
		return
	}
	p[0], p[6], p[7] = 0x60, l.proto, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-ipv6Size))
	copy(p[8:], source[:14])
	copy(p[24:], to)
}

func (s Shape) writeL4(p []byte, l layout) {
	binary.BigEndian.PutUint16(p[2:], s.To.Port())
	if l.proto == protoUDP {
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)))
		return
	}
	const syn, push, ack = 0x02, 0x08, 0x10
	binary.BigEndian.PutUint32(p[4:], 0x01020304) // an arbitrary sequence number
	p[12], p[13] = tcpSize/4<<4, syn
	if s.Kind == TCPAck {
		p[13] = ack
		if l.size > l.headers {
			p[13] |= push
		}
	}
	binary.BigEndian.PutUint16(p[14:], 0xffff)
}

// sumL4 sums what the checksum of TCP or UDP covers: a pseudo header and the rest of the packet.
func (l layout) sumL4(packet []byte) uint16 {
	addrs := packet[ethernetSize+12 : l.l4]
	if !l.v4 {
		addrs = packet[ethernetSize+8 : l.l4]
	}
	rest := binary.BigEndian.AppendUint16([]byte{0, l.proto}, uint16(len(packet)-l.l4))
	return sum(addrs, rest, packet[l.l4:])
}

// sum adds words in the machine's byte order, which is as good as any other for this sum.
func sum(parts ...[]byte) uint16 {
	total := uint64(0)
	for _, p := range parts {
		for ; len(p) >= 2; p = p[2:] {
			total += uint64(binary.NativeEndian.Uint16(p))
		}
		if len(p) == 1 {
			total += uint64(binary.NativeEndian.Uint16([]byte{p[0], 0}))
		}
	}
	for total > 0xffff {
		total = total&0xffff + total>>16
	}
	return uint16(total)
}

// stride returns a step, a good part of all flows, by which each flow is visited once before any is
// visited again.
func stride(flows int) uint32 {
	if flows == 1 {
		return 0
	}
	for step := max(flows*618/1000, 1); ; step++ {
		a, b := flows, step
		for b != 0 {
			a, b = b, a%b
		}
		if a == 1 {
			return uint32(step)
		}
	}
}
