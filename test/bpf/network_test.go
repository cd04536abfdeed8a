package bpf

import (
	"encoding/binary"
	"net/netip"
)

// datagram describes a packet below TCP and UDP.
type datagram struct {
	from, to string // addresses
	proto    byte
	ttl      byte   // 0 means 64
	tos      byte   // IPv4
	id       uint32 // in IPv6 only for a fragment
	fragment uint16 // flags and offset, in the form of IPv4
	payload  []byte
	padding  int // bytes of the frame after the packet
	macs     [2]byte
}

func (d datagram) bytes() []byte {
	from, to := netip.MustParseAddr(d.from), netip.MustParseAddr(d.to)
	frame := append(make([]byte, 5), d.macs[0], 0, 0, 0, 0, 0, d.macs[1])
	ttl := d.ttl
	if ttl == 0 {
		ttl = 64
	}
	if from.Is4() {
		header := []byte{0x45, d.tos, 0, 0, 0, 0, 0, 0, ttl, d.proto, 0, 0}
		binary.BigEndian.PutUint16(header[2:], uint16(20+len(d.payload)))
		binary.BigEndian.PutUint16(header[4:], uint16(d.id))
		binary.BigEndian.PutUint16(header[6:], d.fragment)
		header = append(append(header, from.AsSlice()...), to.AsSlice()...)
		binary.BigEndian.PutUint16(header[10:], sum16(header))
		frame = append(append(append(frame, 8, 0), header...), d.payload...)
		return append(frame, make([]byte, d.padding)...)
	}
	var extension []byte
	next := d.proto
	if d.fragment != 0 {
		extension = binary.BigEndian.AppendUint16([]byte{next, 0}, d.fragment<<3|d.fragment>>13)
		extension = binary.BigEndian.AppendUint32(extension, d.id)
		next = 44
	}
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(extension)+len(d.payload)))
	frame = append(append(append(frame, next, ttl), from.AsSlice()...), to.AsSlice()...)
	frame = append(append(frame, extension...), d.payload...)
	return append(frame, make([]byte, d.padding)...)
}

// message is an ICMP message; the numbers are those of the family.
type message struct {
	from, to   string // addresses
	kind, code byte
	rest       uint32
	body       []byte
	ttl, tos   byte
	macs       [2]byte
	id         uint32
	fragment   uint16
}

func (m message) bytes() []byte {
	from, to := netip.MustParseAddr(m.from), netip.MustParseAddr(m.to)
	icmp := binary.BigEndian.AppendUint32([]byte{m.kind, m.code, 0, 0}, m.rest)
	icmp = append(icmp, m.body...)
	d := datagram{from: m.from, to: m.to, proto: 1, ttl: m.ttl, tos: m.tos, payload: icmp, macs: m.macs, id: m.id, fragment: m.fragment}
	var pseudo []byte
	if from.Is6() {
		d.proto = 58
		pseudo = append(append(from.AsSlice(), to.AsSlice()...), 0, 0, byte(len(icmp)>>8), byte(len(icmp)), 0, 0, 0, 58)
	}
	binary.BigEndian.PutUint16(icmp[2:], sum16(pseudo, icmp))
	return d.bytes()
}

// kinds are the ICMP types and codes of one family.
type kinds struct{ unreachable, port, tooBig, expired, parameter, redirect, echo, reply byte }

func (f family) kinds() kinds {
	if f.any == "0.0.0.0" {
		return kinds{3, 3, 3, 11, 12, 5, 8, 0}
	}
	return kinds{1, 4, 2, 3, 4, 137, 128, 129}
}

// host returns an address without brackets.
func host(addr string) string {
	if addr[0] == '[' {
		return addr[1 : len(addr)-1]
	}
	return addr
}
