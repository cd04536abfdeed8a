package twin

import (
	"encoding/binary"
	"hash/crc32"
)

// sum16 returns the RFC 1071 sum over parts, not inverted. All parts but the last must have an even
// length.
func sum16(parts ...[]byte) uint16 {
	var sum uint64
	for _, part := range parts {
		for len(part) > 1 {
			sum += uint64(binary.BigEndian.Uint16(part))
			part = part[2:]
		}
		if len(part) == 1 {
			sum += uint64(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// resum updates a checksum by RFC 1624 after the covered bytes old became new.
func resum(check []byte, old, new []byte) {
	inverted := make([]byte, len(old))
	for i := range old {
		inverted[i] = ^old[i]
	}
	sum := binary.BigEndian.AppendUint16(nil, ^binary.BigEndian.Uint16(check))
	binary.BigEndian.PutUint16(check, ^sum16(sum, inverted, new))
}

// pseudo returns the pseudo header that a transport checksum covers.
func pseudo(source, dest []byte, size int, proto byte) []byte {
	header := append(append([]byte{}, source...), dest...)
	return append(binary.BigEndian.AppendUint32(header, uint32(size)), 0, 0, 0, proto)
}

// endsOf returns the addresses in an IP header.
func endsOf(ip []byte) []byte {
	if ip[0]>>4 == 4 {
		return ip[12:20]
	}
	return ip[8:40]
}

// resumSCTP updates the checksum of the SCTP packet from offset at to end, for new ports. The rest
// of the packet adds the same to the CRC before and after, whatever it is, so zeros stand in for
// it.
func resumSCTP(frame []byte, at, end int, before []byte) {
	check := frame[at+8 : at+12]
	if end < at+12 || binary.LittleEndian.Uint32(check) == 0 {
		return
	}
	whole := make([]byte, end-at)
	sum := func(ports []byte) uint32 {
		copy(whole, ports)
		return crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli))
	}
	binary.LittleEndian.PutUint32(check, binary.LittleEndian.Uint32(check)^sum(before)^sum(frame[at:at+4]))
}

// soundSCTP reports whether an SCTP packet has the right checksum, or none.
func soundSCTP(l4 []byte) bool {
	if len(l4) < 12 {
		return false
	}
	sum, whole := binary.LittleEndian.Uint32(l4[8:]), append([]byte{}, l4...)
	clear(whole[8:12])
	return sum == 0 || sum == crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli))
}
