package maps

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"fairlead.io/fairlead/pkg/bpf"
)

// sealed is the number of bytes of a row that its checksum covers, flagsAt the offset of its flags.
const (
	sealed  = int(unsafe.Offsetof(bpf.MapsCtEntry{}.Seen))
	flagsAt = int(unsafe.Offsetof(bpf.MapsCtEntry{}.Kind))
)

// Changing any one byte to any other value changes the checksum.
func TestChecksumOfEveryByte(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var key bpf.MapsFlow
		var row bpf.MapsCtEntry
		keyBytes := (*[unsafe.Sizeof(key)]byte)(unsafe.Pointer(&key))
		rowBytes := (*[unsafe.Sizeof(row)]byte)(unsafe.Pointer(&row))
		for i := range keyBytes {
			keyBytes[i] = byte(random.Uint32())
		}
		for i := range rowBytes {
			rowBytes[i] = byte(random.Uint32())
		}
		was := ChecksumOf(key, row)
		differs := func(what string, at int, b *byte) {
			for change := 1; change < 256; change++ {
				*b ^= byte(change)
				if ChecksumOf(key, row) == was {
					t.Errorf("changing byte %d of the %s by %#x leaves the checksum the same", at, what, change)
				}
				*b ^= byte(change)
			}
		}
		for i := range keyBytes {
			differs("key", i, &keyBytes[i])
		}
		for i := range rowBytes {
			if i < sealed || i == flagsAt {
				differs("row", i, &rowBytes[i])
			}
		}
	}
}

// Flows of consecutive clients, ports and backends are mistaken for each other no more often than
// chance allows.
func TestChecksumOfNeighbors(t *testing.T) {
	var flows []bpf.MapsFlow
	var rows []bpf.MapsCtEntry
	for i := range 1 << 9 {
		low, mid, high := byte(i&7)<<5, byte(i>>3&7)<<5, byte(i>>6)<<5
		key := bpf.MapsFlow{Proto: 6, Sport: uint16(high) << 8, Dport: 0x5000}
		row := bpf.MapsCtEntry{Sport: key.Sport, Dport: 0x901f}
		key.Saddr.Word[2], key.Daddr.Word[2] = 0xffff0000, 0xffff0000
		key.Saddr.Word[3], key.Daddr.Word[3] = uint32(low)<<24|10, uint32(mid)<<24|20
		row.Saddr, row.Daddr = key.Saddr, key.Daddr
		row.Checksum = ChecksumOf(key, row)
		flows, rows = append(flows, key), append(rows, row)
	}
	pairs, mistaken := 0, 0
	for i := range flows {
		for j := range rows {
			if i != j {
				pairs++
				if ChecksumOf(flows[i], rows[j]) == rows[j].Checksum {
					mistaken++
				}
			}
		}
	}
	if limit := 2 * pairs >> 16; mistaken > limit {
		t.Errorf("of %d pairs %d are mistaken for each other, want at most %d", pairs, mistaken, limit)
	}
}
