package mapstats

import (
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Fragments counts fragments that came before the first one of their datagram, which has the
// ports. Most of the stored fragments belong to no flow of fairlead, and are neither returned nor
// lost.
type Fragments struct {
	Stored   uint64 `json:"stored"`
	Returned uint64 `json:"returned"` // after the first had come
	Lost     uint64 `json:"lost"`     // while the first could still come: evicted, or not written back
	Refused  uint64 `json:"refused"`  // larger than a place, or the place was in use at that moment
}

func readFragments(m *ebpf.Map) (Fragments, error) {
	var tally bpf.MapsEarlyTally
	if err := m.Lookup(uint32(0), &tally); err != nil {
		return Fragments{}, fmt.Errorf("read what became of fragments: %w", err)
	}
	return Fragments{Stored: tally.Kept, Returned: tally.Returned, Lost: tally.Lost, Refused: tally.Refused}, nil
}

// Text returns the line shown in the status.
func (f *Fragments) Text() string {
	return fmt.Sprintf("%d early fragments stored, %d returned, %d lost, %d refused", f.Stored, f.Returned, f.Lost, f.Refused)
}
