package minimal

import (
	"encoding/binary"
	"net/netip"
)

// words returns an address as the programs see it: words in network order, of which IPv4 has the first.
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

// difference is what a checksum changes by when data is replaced, in 32 bits as the kernel takes it.
type difference uint32

// add adds that a word became another one.
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
