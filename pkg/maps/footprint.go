package maps

import (
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// What the kernel takes beside keys and values: for a row of a hash and for its bucket, and for a processor's pointer to a
// row of its own.
const (
	hashRow    = 48
	hashBucket = 16
	pointer    = 8
	page       = 4096
)

// Footprint returns about how much memory the maps take when they are made with these sizes and that room, on a node with so
// many processors. Rows that are made when they are needed come on top.
func Footprint(sizes Sizes, room Room, cpus int) (uint64, error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return 0, fmt.Errorf("read map specs: %w", err)
	}
	var total uint64
	for _, f := range (&Maps{}).fields() {
		spec := specs.Maps[f.Name]
		if f.size != nil {
			spec.MaxEntries = f.size(sizes)
		}
		if PushesOut(f.Name) {
			spec.MaxEntries = max(spec.MaxEntries, room.of(f.Name))
		}
		total += footprint(spec, uint64(cpus))
	}
	return total, nil
}

func footprint(spec *ebpf.MapSpec, cpus uint64) uint64 {
	const noPrealloc = 1 // BPF_F_NO_PREALLOC
	eight := func(n uint32) uint64 { return uint64(n+7) / 8 * 8 }
	rows, key, value := uint64(spec.MaxEntries), eight(spec.KeySize), eight(spec.ValueSize)
	switch spec.Type {
	case ebpf.Array:
		return (rows*value + page - 1) / page * page
	case ebpf.PerCPUArray:
		return rows * (pointer + cpus*value)
	case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		buckets := uint64(roundUp(spec.MaxEntries)) * hashBucket
		if spec.Flags&noPrealloc != 0 {
			return buckets
		}
		return buckets + rows*(hashRow+key+value)
	case ebpf.RingBuf:
		return rows
	default: // tries and storage have rows as they are needed
		return 0
	}
}
