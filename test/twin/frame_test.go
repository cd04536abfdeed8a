package twin

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// draft describes a frame; bytes writes it with every length and checksum as it should be.
type draft struct {
	dest, source MAC
	from, to     netip.AddrPort
	proto        byte
	flags        byte
	seq, ack     uint32
	ttl          byte
	tags         int
	label        uint16   // IPv6 flow label
	options      int      // number of 32-bit words of IPv4 options
	marks        [][]byte // options that come first, or such headers of IPv6
	extensions   [][]byte // IPv6 extension headers; bytes fills in the first byte
	kinds        []byte   // their types
	whole        bool
	id           uint16
	offset       int // of a fragment, in units of eight bytes
	more         bool
	noSum        bool // UDP or SCTP without a checksum
	// What follows the TCP or UDP header; everything after IP with other protocols and in later
	// fragments.
	payload []byte
}

func (d draft) bytes() []byte {
	if d.offset == 0 {
		return d.around(d.transport())
	}
	return d.around(d.payload)
}

// cutUp returns a datagram in two fragments, the first of which has some of what follows the IP header.
func (d draft) cutUp(size int) (first, rest []byte) {
	body := d.transport()
	d.whole, d.more = false, true
	first = d.around(body[:size])
	d.more, d.offset = false, size/8
	return first, d.around(body[size:])
}

// around returns a frame with a body behind the IP header.
func (d draft) around(body []byte) []byte {
	frame := append(append([]byte{}, d.dest[:]...), d.source[:]...)
	for range d.tags {
		frame = append(frame, 0x81, 0, 0, 5)
	}
	if d.from.Addr().Is4() {
		return append(append(append(frame, 8, 0), d.header4(len(body))...), body...)
	}
	return append(append(append(frame, 0x86, 0xdd), d.header6(len(body))...), body...)
}

func (d draft) header4(size int) []byte {
	place := uint16(d.offset)
	if d.more {
		place |= 0x2000
	}
	if d.whole {
		place |= 0x4000
	}
	marks := bytes.Join(d.marks, nil)
	ip := []byte{byte(0x45 + d.options + len(marks)/4), 0, 0, 0, byte(d.id >> 8), byte(d.id), byte(place >> 8), byte(place), d.ttl, d.proto, 0, 0}
	ip = append(append(ip, d.from.Addr().AsSlice()...), d.to.Addr().AsSlice()...)
	ip = append(ip, marks...)
	for range d.options {
		ip = append(ip, 1, 1, 1, 1)
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+size))
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
	return ip
}

func (d draft) header6(size int) []byte {
	if d.more || d.offset > 0 {
		place := uint16(d.offset << 3)
		if d.more {
			place |= 1
		}
		header := []byte{0, 0, byte(place >> 8), byte(place), 0, 0, byte(d.id >> 8), byte(d.id)}
		d.extensions, d.kinds = append(d.extensions, header), append(d.kinds, 44)
	}
	for _, mark := range d.marks {
		d.extensions, d.kinds = append([][]byte{mark}, d.extensions...), append([]byte{60}, d.kinds...)
	}
	var chain []byte
	for i, header := range d.extensions {
		at := len(chain)
		chain = append(chain, header...)
		if chain[at] = d.proto; i+1 < len(d.kinds) {
			chain[at] = d.kinds[i+1]
		}
	}
	next := d.proto
	if len(d.kinds) > 0 {
		next = d.kinds[0]
	}
	ip := append(binary.BigEndian.AppendUint16([]byte{0x60, 0, byte(d.label >> 8), byte(d.label)}, uint16(len(chain)+size)), next, d.ttl)
	ip = append(append(ip, d.from.Addr().AsSlice()...), d.to.Addr().AsSlice()...)
	return append(ip, chain...)
}

// transport returns what follows the IP header.
func (d draft) transport() []byte {
	var l4 []byte
	at := 0
	switch d.proto {
	case protoSCTP:
		return d.association()
	case protoTCP:
		l4 = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, d.from.Port()), d.to.Port())
		l4 = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(l4, d.seq), d.ack)
		l4 = append(l4, 0x50, d.flags, 1, 0, 0, 0, 0, 0)
		at = 16
	case protoUDP:
		l4 = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, d.from.Port()), d.to.Port())
		l4 = append(binary.BigEndian.AppendUint16(l4, uint16(8+len(d.payload))), 0, 0)
		at = 6
	case protoICMP, protoICMPv6:
		at = 2
	default:
		return d.payload
	}
	l4 = append(l4, d.payload...)
	if d.proto == protoUDP && d.noSum || len(l4) < at+2 {
		return l4
	}
	sum := ^sum16(l4)
	if d.proto != protoICMP {
		sum = ^sum16(pseudo(d.from.Addr().AsSlice(), d.to.Addr().AsSlice(), len(l4), d.proto), l4)
	}
	if sum == 0 && d.proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[at:], sum)
	return l4
}

// association returns an SCTP packet with one chunk.
func (d draft) association() []byte {
	chunk := byte(3) // SACK
	switch {
	case d.flags&RST != 0:
		chunk = chunkAbort
	case d.flags&FIN != 0:
		chunk = []byte{chunkShutdown, chunkShutdownAck, chunkShutdownComplete}[d.seq%3]
	case d.flags&(SYN|ACK) == SYN|ACK:
		chunk = chunkInitAck
	case d.flags&SYN != 0:
		chunk = chunkInit
	}
	l4 := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, d.from.Port()), d.to.Port())
	l4 = append(binary.BigEndian.AppendUint32(l4, d.ack), 0, 0, 0, 0, chunk, 0, 0, byte(8+len(d.payload)))
	l4 = append(binary.BigEndian.AppendUint32(l4, d.seq), d.payload...)
	if !d.noSum {
		binary.LittleEndian.PutUint32(l4[8:], crc32.Checksum(l4, crc32.MakeTable(crc32.Castagnoli)))
	}
	return l4
}
