package maps

import (
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Memory the kernel uses besides keys and values: for each row and bucket of a hash, and for the
// per-CPU pointer of a row.
const (
	hashRow    = 48
	hashBucket = 16
	pointer    = 8
	page       = 4096
)

// Footprint estimates how much memory maps of these sizes and this room take when they are created,
// on a node with that many CPUs. It leaves out rows that the kernel allocates on demand.
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
	default: // tries and storage allocate rows on demand
		return 0
	}
}
