// Package seal makes rows of flows that the programs believe: it has the twin of ct_seal in bpf/lib/ct.h.
package seal

import (
	"math/bits"
	"unsafe"

	"fairlead.io/fairlead/pkg/bpf"
)

// factors are ct_factor: one for each word of a key and of a row, and the last for the flags.
var factors = [13]uint64{
	0xe1454c40c439f34b, 0x26b563b1e794ee15, 0xac8be7d742840d2b, 0xe7ca430e92ac3d43,
	0x1333bc1cfe6c2b03, 0x20050ed31a6e72b9, 0x94a67f00f335c357, 0x332726d0356a4153,
	0xa0187b4d51209e8f, 0xae6ac4a9e89c5bc7, 0x542861cd55e7d67f, 0x17bcc74d6d683cf9,
	0x8491cabea0afe357,
}

// addrWords is how many words of a key or a row are addresses, which come first.
const addrWords = 4

// Of returns the seal of a row under its key.
func Of(key bpf.MapsFlow, row bpf.MapsCtEntry) uint16 {
	sum := uint64(row.Flags) * factors[12]
	for i, word := range (*[5]uint64)(unsafe.Pointer(&key)) {
		sum += turn(i, word) * factors[i]
	}
	for i, word := range (*[8]uint64)(unsafe.Pointer(&row))[:7] {
		sum += turn(i, word) * factors[5+i]
	}
	return uint16(sum >> 48)
}

// turn puts the last byte of an address at the lower end.
func turn(i int, word uint64) uint64 {
	if i < addrWords {
		return bits.ReverseBytes64(word)
	}
	return word
}
