package maps

import (
	"math/bits"
	"unsafe"

	"fairlead.io/fairlead/pkg/bpf"
)

// factors mirrors flow_hash_factor: one factor for each word of the key and of the row, and the last one
// for the kind.
var factors = [13]uint64{
	0xe1454c40c439f34b, 0x26b563b1e794ee15, 0xac8be7d742840d2b, 0xe7ca430e92ac3d43,
	0x1333bc1cfe6c2b03, 0x20050ed31a6e72b9, 0x94a67f00f335c357, 0x332726d0356a4153,
	0xa0187b4d51209e8f, 0xae6ac4a9e89c5bc7, 0x542861cd55e7d67f, 0x17bcc74d6d683cf9,
	0x8491cabea0afe357,
}

// addrWords is the number of words of a key or a row that hold addresses. They come first.
const addrWords = 4

// ChecksumOf returns the checksum that makes the BPF programs accept a row under its key: the Go twin
// of flow_checksum.
func ChecksumOf(key bpf.MapsFlow, row bpf.MapsCtEntry) uint16 {
	sum := uint64(row.Kind) * factors[12]
	for i, word := range (*[5]uint64)(unsafe.Pointer(&key)) {
		sum += turn(i, word) * factors[i]
	}
	for i, word := range (*[8]uint64)(unsafe.Pointer(&row))[:7] {
		sum += turn(i, word) * factors[5+i]
	}
	return uint16(sum >> 48)
}

// turn reverses the bytes of an address word, so that the address's last byte is the lowest.
func turn(i int, word uint64) uint64 {
	if i < addrWords {
		return bits.ReverseBytes64(word)
	}
	return word
}
