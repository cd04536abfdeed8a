package minimal

import (
	"encoding/binary"
	"net/netip"
)

// words returns an address in the programs' format: words in network order, only the first of which
// is used for IPv4.
func words(a netip.Addr) (w [4]uint32) {
	for i, b := 0, a.AsSlice(); len(b) >= 4; i, b = i+1, b[4:] {
		w[i] = binary.NativeEndian.Uint32(b)
	}
	return w
}

// order16 returns a port in network order.
func order16(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

// difference is the change of a checksum when data is replaced, in the kernel's 32-bit form.
type difference uint32

// add records the replacement of a word.
func (d *difference) add(before, after uint32) {
	sum := uint64(*d) + uint64(^before) + uint64(after)
	for sum > 0xffffffff {
		sum = sum&0xffffffff + sum>>32
	}
	*d = difference(sum)
}

func (d *difference) addAddr(before, after netip.Addr) {
	b, a := words(before), words(after)
	for i := range b {
		d.add(b[i], a[i])
	}
}

func (d *difference) addPort(before, after uint16) {
	d.add(uint32(order16(before)), uint32(order16(after)))
}
