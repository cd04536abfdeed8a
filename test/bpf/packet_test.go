package bpf

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strconv"
	"strings"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	tcp  = 6
	udp  = 17
	sctp = 132
)

// packet describes a packet; bytes writes it from scratch, as input and as the expected output.
type packet struct {
	from, to  string // address and port
	proto     byte
	flags     byte   // TCP flags; for SCTP those that correspond to the first chunk
	seq, ack  uint32 // for SCTP the tag that an INIT or INIT ACK asks for, and the packet's tag
	tags      int    // number of VLAN tags
	options   int    // number of words of IPv4 options
	extension []byte // IPv6 headers before TCP or UDP; as many as there are lengths; their types are filled in: destination options
	fragment  uint16 // flags and offset, in the form of IPv4
	noSum     bool   // UDP or SCTP without a checksum
	whole     bool   // IPv4 routers must not fragment it
	ttl       byte   // 0 means 64
	payload   int    // bytes; 0 means five
	cut       int    // bytes left of the TCP or UDP header, with nothing after it
	macs      string // the twelve bytes of both link addresses
}

// sum16 is the internet checksum over parts, all but the last of even length.
func sum16(parts ...[]byte) uint16 {
	var sum uint32
	for _, part := range parts {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func (p packet) bytes() []byte {
	from, to := netip.MustParseAddrPort(p.from), netip.MustParseAddrPort(p.to)
	frame := make([]byte, 12)
	copy(frame, p.macs)
	if p.ttl == 0 {
		p.ttl = 64
	}
	if p.whole {
		p.fragment |= 0x4000
	}
	for range p.tags {
		frame = append(frame, 0x81, 0, 0, 5)
	}
	l4 := p.transport(from, to)
	if p.cut > 0 {
		l4 = l4[:p.cut]
	}
	if from.Addr().Is6() {
		if p.fragment&0x3fff != 0 {
			p.extension = []byte{0, 0, 0, 0, 0, 0, 0, 7}
			binary.BigEndian.PutUint16(p.extension[2:], p.fragment<<3|p.fragment>>13)
		}
		frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(len(p.extension)+len(l4)))
		next := p.proto
		if len(p.extension) > 0 {
			last := 0
			for next := 0; next < len(p.extension); next += 8 * (int(p.extension[next+1]) + 1) {
				last, p.extension[next] = next, 60
			}
			p.extension[last] = p.proto
			if next = 60; p.fragment&0x3fff != 0 {
				next = 44
			}
		}
		frame = append(frame, next, p.ttl)
		frame = append(append(frame, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
		return append(append(frame, p.extension...), l4...)
	}
	header := append([]byte{byte(0x45 + p.options), 0, 0, 0, 0, 7, byte(p.fragment >> 8), byte(p.fragment), p.ttl, p.proto, 0, 0},
		append(from.Addr().AsSlice(), to.Addr().AsSlice()...)...)
	for range p.options {
		header = append(header, 1, 1, 1, 1)
	}
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(l4)))
	binary.BigEndian.PutUint16(header[10:], sum16(header))
	return append(append(append(frame, 8, 0), header...), l4...)
}

// content returns the payload.
func (p packet) content() string {
	if p.payload == 0 {
		return "hello"
	}
	return strings.Repeat("abc", p.payload/3+1)[:p.payload]
}

// chunks maps flags to the type of the SCTP chunk that corresponds to them.
var chunks = map[byte]byte{syn: 1, syn | ack: 2, ack: 0, rst: 6, fin: 7, 0: 3}

// association returns an SCTP packet, whose first chunk has twenty bytes and the payload.
func (p packet) association(from, to netip.AddrPort) []byte {
	l4 := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from.Port()), to.Port())
	l4 = append(binary.BigEndian.AppendUint32(l4, p.ack), 0, 0, 0, 0, chunks[p.flags], 0, 0, byte(20+len(p.content())))
	l4 = append(append(binary.BigEndian.AppendUint32(l4, p.seq), make([]byte, 12)...), p.content()...)
	if !p.noSum {
		binary.LittleEndian.PutUint32(l4[8:], crc32.Checksum(l4, crc32.MakeTable(crc32.Castagnoli)))
	}
	return l4
}

// transport returns the TCP, UDP or SCTP header with its checksum, and the payload.
func (p packet) transport(from, to netip.AddrPort) []byte {
	if p.proto == sctp {
		return p.association(from, to)
	}
	l4 := binary.BigEndian.AppendUint16(nil, from.Port())
	l4 = binary.BigEndian.AppendUint16(l4, to.Port())
	at := 6
	if p.proto == tcp {
		l4 = binary.BigEndian.AppendUint32(l4, p.seq)
		l4 = append(binary.BigEndian.AppendUint32(l4, p.ack), 0x50, p.flags, 1, 0, 0, 0, 0, 0)
		at = 16
	} else {
		l4 = append(binary.BigEndian.AppendUint16(l4, uint16(8+len(p.content()))), 0, 0)
	}
	l4 = append(l4, p.content()...)
	if p.noSum {
		return l4
	}
	pseudo := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	sum := sum16(pseudo, []byte{0, p.proto, byte(len(l4) >> 8), byte(len(l4))}, l4)
	if sum == 0 && p.proto == udp {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[at:], sum)
	return l4
}

func (p packet) headers() int { // the length up to the end of the header that has the ports
	return len(p.bytes()) - len(p.content())
}

// portOf returns the source port of a packet without tags and options.
func portOf(frame []byte, f family) string {
	if f.any == "0.0.0.0" {
		return portOfAt(frame, 14+20)
	}
	return portOfAt(frame, 14+40)
}

func portOfText(addrPort string) string {
	return strconv.Itoa(int(netip.MustParseAddrPort(addrPort).Port()))
}

// addrPort joins an address and a port in the form of a family.
func addrPort(addr string, port int) string { return addr + ":" + strconv.Itoa(port) }

// flowOf returns the key of the packets of a flow.
func flowOf(from, to string, proto byte) bpf.MapsFlow {
	source, target := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	key, back := maps.KeyOf(target.Addr(), target.Port(), model.Protocol(proto)), maps.KeyOf(source.Addr(), source.Port(), model.Protocol(proto))
	return bpf.MapsFlow{Saddr: back.Addr, Daddr: key.Addr, Sport: back.Port, Dport: key.Port, Proto: proto}
}

func portOfAt(frame []byte, at int) string {
	return strconv.Itoa(int(binary.BigEndian.Uint16(frame[at:])))
}
