package maps

import (
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Turnover is how many rows a map was ever given that pushes out what it has no room for, and how many somebody deleted.
// What is neither there nor deleted was pushed out: the kernel tells nobody.
type Turnover = bpf.MapsTurnover

// SweepRun is what the programs are told that take out rows which are over.
type SweepRun = bpf.MapsSweepRun

// The rows of the other maps that push out.
type (
	AffinityKey  = bpf.MapsAffinityKey
	Affinity     = bpf.MapsAffinity
	Datagram     = bpf.MapsDatagram
	DatagramFlow = bpf.MapsDatagramFlow
)

// lru is what has to be known of a map that pushes out: its row of turnover, and how to walk through it.
type lru struct {
	name  string
	index uint32
	count func(*ebpf.Map) (int, error)
	carry func(from, to *ebpf.Map) error
}

func lrus() []lru {
	return []lru{
		{"ct_half", uint32(bpf.MapsLruLRU_CT_HALF), countRows[Flow, FlowRow], carryRows[Flow, FlowRow]},
		{"affinity", uint32(bpf.MapsLruLRU_AFFINITY), countRows[AffinityKey, Affinity], carryRows[AffinityKey, Affinity]},
		{"frags", uint32(bpf.MapsLruLRU_FRAGS), countRows[Datagram, DatagramFlow], carryRows[Datagram, DatagramFlow]},
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

// PushesOut reports whether the map of that name pushes out what it has no room for.
func PushesOut(name string) bool {
	_, ok := lruOf(name)
	return ok
}

// ReadTurnover returns what turnover has of the map of that name, which pushes out.
func ReadTurnover(turnover *ebpf.Map, name string) (Turnover, error) {
	var sum Turnover
	l, ok := lruOf(name)
	if !ok {
		return sum, fmt.Errorf("read the turnover of map %s: it pushes nothing out", name)
	}
	var perCPU []Turnover
	if err := turnover.Lookup(l.index, &perCPU); err != nil {
		return sum, fmt.Errorf("read the turnover of map %s: %w", name, err)
	}
	for _, t := range perCPU {
		sum.Made += t.Made
		sum.Deleted += t.Deleted
	}
	return sum, nil
}

// Census is what a map that pushes out has at a moment, and what became of the rest.
type Census struct {
	Turnover Turnover // before the rows were counted
	Rows     int
	// Evicted is how many rows were pushed out, ever. It is never more than were: rows that come or are deleted while the
	// others are counted, some milliseconds, are told by the next census. At rest it is exact.
	Evicted uint64
}

// TakeCensus counts the rows of the map of that name, which pushes out. It only reads, and makes no row look younger.
func TakeCensus(turnover, m *ebpf.Map, name string) (c Census, err error) {
	if c.Turnover, err = ReadTurnover(turnover, name); err != nil {
		return c, err
	}
	l, _ := lruOf(name)
	if c.Rows, err = l.count(m); err != nil {
		return c, fmt.Errorf("count the rows of map %s: %w", name, err)
	}
	after, err := ReadTurnover(turnover, name)
	if err != nil {
		return c, err
	}
	// A row that was made before the first look and is neither met nor deleted by the second was pushed out.
	if gone := after.Deleted + uint64(c.Rows); c.Turnover.Made > gone {
		c.Evicted = c.Turnover.Made - gone
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

// OpenTurnover opens the counts of the maps pinned in dir, as Open does. The caller closes it.
func OpenTurnover(dir string, readOnly bool) (*ebpf.Map, error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, fmt.Errorf("read map specs: %w", err)
	}
	return openPin(filepath.Join(dir, "turnover"), specs.Maps["turnover"], false, readOnly)
}
