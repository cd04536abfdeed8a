package hostile

import (
	"encoding/binary"
	"net/netip"
)

// The protocols of headers.
const (
	ipip = 4
	tcp  = 6
	udp  = 17
	ipv6 = 41
)

// The UDP port of Geneve.
const genevePort = 6081

func etherType(addr netip.Addr) []byte {
	if addr.Is4() {
		return []byte{8, 0}
	}
	return []byte{0x86, 0xdd}
}

// sum16 returns the sum that checksums of the Internet are the complement of.
func sum16(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * ((i + 1) % 2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// inIP returns a packet with a header of IP. Spare is what DSR keeps a backend's port in: the
// identification, or the flow label.
func inIP(from, to netip.Addr, proto byte, spare uint16, payload []byte) []byte {
	var ip []byte
	if from.Is4() {
		ip = binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(payload)))
		ip = append(binary.BigEndian.AppendUint16(ip, spare), 0x40, 0, 64, proto, 0, 0)
	} else {
		ip = binary.BigEndian.AppendUint16([]byte{0x60, 1}, spare)
		ip = append(binary.BigEndian.AppendUint16(ip, uint16(len(payload))), proto, 64)
	}
	ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	if from.Is4() {
		binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
	}
	return append(ip, payload...)
}

// summed returns a header of TCP or UDP, and what is behind it, with their checksum at an offset.
func summed(from, to netip.Addr, proto byte, packet []byte, at int) []byte {
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, proto)
	pseudo = append(binary.BigEndian.AppendUint16(pseudo, uint16(len(packet))), packet...)
	binary.BigEndian.PutUint16(packet[at:], ^sum16(pseudo))
	return packet
}

func ports(from, to netip.AddrPort) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from.Port()), to.Port())
}

// datagram returns a packet of UDP.
func datagram(from, to netip.AddrPort, payload []byte) []byte {
	packet := append(binary.BigEndian.AppendUint16(ports(from, to), uint16(8+len(payload))), 0, 0)
	packet = summed(from.Addr(), to.Addr(), udp, append(packet, payload...), 6)
	return inIP(from.Addr(), to.Addr(), udp, 0, packet)
}

// syn returns a packet that begins a connection.
func syn(from, to netip.AddrPort) []byte {
	packet := append(ports(from, to), 0, 0, 0, 7, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0)
	return inIP(from.Addr(), to.Addr(), tcp, 0, summed(from.Addr(), to.Addr(), tcp, packet, 16))
}

// claim is what a forwarded packet says.
type claim struct {
	from          netip.Addr // the node that has forwarded it
	backend       netip.AddrPort
	client, front netip.AddrPort
	first         func(from, to netip.AddrPort) []byte // makes the client's packet
}

// forwardings are the forms in which nodes forward a client's packet to a backend, see docs/dsr.md.
func forwardings() map[string]func(claim) []byte {
	return map[string]func(claim) []byte{"ipip": claim.inIPIP, "geneve": claim.inGeneve, "opt": claim.withOption}
}

func (c claim) inIPIP() []byte {
	proto := byte(ipv6)
	if c.from.Is4() {
		proto = ipip
	}
	return inIP(c.from, c.backend.Addr(), proto, c.backend.Port(), c.first(c.client, c.front))
}

func (c claim) inGeneve() []byte {
	inner := c.first(c.client, c.front)
	packet := append(ports(netip.AddrPortFrom(c.from, 600), netip.AddrPortFrom(c.backend.Addr(), genevePort)), 0, 0, 0, 0)
	binary.BigEndian.PutUint16(packet[4:], uint16(8+16+14+len(inner)))
	packet = append(packet, 2, 0x40, 0x65, 0x58, 0, 0, 0, 0, 0xff, 0x1d, 0x81, 1)
	packet = append(binary.BigEndian.AppendUint16(packet, c.backend.Port()), 0, 0)
	packet = append(packet, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2)
	packet = append(append(packet, etherType(c.from)...), inner...)
	return inIP(c.from, c.backend.Addr(), udp, c.backend.Port(), summed(c.from, c.backend.Addr(), udp, packet, 6))
}

// withOption returns the client's packet to the backend, with what was dialed in an option.
func (c claim) withOption() []byte {
	packet, at, option := c.first(c.client, c.backend), 20, []byte{158, 8}
	if !c.front.Addr().Is4() {
		at, option = 40, []byte{packet[6], 2, 1, 0, 0x5e, 18}
	}
	option = append(binary.BigEndian.AppendUint16(option, c.front.Port()), c.front.Addr().AsSlice()...)
	packet = append(append(packet[:at:at], option...), packet[at:]...)
	if !c.front.Addr().Is4() {
		packet[6] = 60
		binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
		return packet
	}
	packet[0], packet[10], packet[11] = 0x45+2, 0, 0
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	binary.BigEndian.PutUint16(packet[10:], ^sum16(packet[:28]))
	return packet
}
