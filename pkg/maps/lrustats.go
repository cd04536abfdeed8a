package maps

import (
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// LruStats counts the rows that were ever inserted into a map that evicts rows, and those that were
// deleted explicitly. The difference to the rows that exist was evicted, which the kernel does not
// report.
type LruStats = bpf.MapsLruStats

// SweepRun is the argument of the programs that delete expired rows.
type SweepRun = bpf.MapsSweepRun

// The keys and rows of the other maps that evict.
type (
	AffinityKey  = bpf.MapsAffinityKey
	Affinity     = bpf.MapsAffinity
	Datagram     = bpf.MapsDatagram
	DatagramFlow = bpf.MapsDatagramFlow
)

// lru describes a map that evicts rows: its row in lru_stats and how to iterate over it.
type lru struct {
	name     string
	index    uint32
	count    func(*ebpf.Map) (int, error)
	copyRows func(from, to *ebpf.Map) error
}

func lrus() []lru {
	return []lru{
		{"ct_pending", uint32(bpf.MapsLruLRU_CT_PENDING), countRows[Flow, FlowRow], copyAll[Flow, FlowRow]},
		{"affinity", uint32(bpf.MapsLruLRU_AFFINITY), countRows[AffinityKey, Affinity], copyAll[AffinityKey, Affinity]},
		{"frags", uint32(bpf.MapsLruLRU_FRAGS), countRows[Datagram, DatagramFlow], copyAll[Datagram, DatagramFlow]},
	}
}

func lruOf(name string) (lru, bool) {
	for _, l := range lrus() {
		if l.name == name {
			return l, true
		}
	}
	return lru{}, false
}

// PushesOut reports whether the named map evicts rows when it is full.
func PushesOut(name string) bool {
	_, ok := lruOf(name)
	return ok
}

// ReadLruStats returns the lru_stats of the named map, which must be one that evicts.
func ReadLruStats(lruStats *ebpf.Map, name string) (LruStats, error) {
	var sum LruStats
	l, ok := lruOf(name)
	if !ok {
		return sum, fmt.Errorf("read the lru_stats of map %s: it never evicts rows", name)
	}
	var perCPU []LruStats
	if err := lruStats.Lookup(l.index, &perCPU); err != nil {
		return sum, fmt.Errorf("read the lru_stats of map %s: %w", name, err)
	}
	for _, t := range perCPU {
		sum.Made += t.Made
		sum.Deleted += t.Deleted
	}
	return sum, nil
}

// LruCounts is the number of rows of a map that evicts, and of those it evicted.
type LruCounts struct {
	LruStats LruStats // before counting the rows
	Rows     int
	// Evicted is how many rows were ever evicted. It never overstates: the next lruCounts includes
	// rows that were inserted or deleted during the few milliseconds that counting took. It is
	// exact when nothing changes.
	Evicted uint64
}

// TakeLruCounts counts the rows of the named map, which must be one that evicts. Counting does not
// refresh rows.
func TakeLruCounts(lruStats, m *ebpf.Map, name string) (c LruCounts, err error) {
	if c.LruStats, err = ReadLruStats(lruStats, name); err != nil {
		return c, err
	}
	l, _ := lruOf(name)
	if c.Rows, err = l.count(m); err != nil {
		return c, fmt.Errorf("count the rows of map %s: %w", name, err)
	}
	after, err := ReadLruStats(lruStats, name)
	if err != nil {
		return c, err
	}
	// A row made before the first reading that was neither counted nor deleted by the second
	// reading was evicted.
	if gone := after.Deleted + uint64(c.Rows); c.LruStats.Made > gone {
		c.Evicted = c.LruStats.Made - gone
	}
	return c, nil
}

func countRows[K, V any](m *ebpf.Map) (n int, err error) {
	var buffer rowBuffer[K, V]
	err = eachRow(m, &buffer, func(keys []K, _ []V) error {
		n += len(keys)
		return nil
	})
	return n, err
}

// OpenLruStats opens the lru_stats map pinned in dir, as Open does. The caller must close it.
func OpenLruStats(dir string, readOnly bool) (*ebpf.Map, error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, fmt.Errorf("read map specs: %w", err)
	}
	return openPin(filepath.Join(dir, "lru_stats"), specs.Maps["lru_stats"], false, readOnly)
}
