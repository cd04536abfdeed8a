package sockmap

import (
	"fmt"

	"fairlead.io/fairlead/pkg/bpf"
)

// Tally is a number of things and of their bytes.
type Tally struct {
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// Tallies counts messages and connections since the programs were loaded.
type Tallies struct {
	Redirected Tally             `json:"redirected"`         // messages that bypassed TCP
	Passed     map[string]Tally  `json:"passed,omitempty"`   // messages of sockets in the map that used TCP, by reason
	Excluded   map[string]uint64 `json:"excluded,omitempty"` // connections that use TCP for good, by reason
	Watched    uint64            `json:"watched"`            // connections whose ends both may take part
	Admitted   uint64            `json:"admitted"`           // sockets that were put into the map
	Left       uint64            `json:"left"`               // and were taken out again before they closed
	Full       uint64            `json:"full"`               // times that there was no room for a connection
}

// passings are the names of enum passing.
var passings = []string{"none", "off", "alone", "state", "unread", "budget", "run", "call", "peer", "lost", "shown"}

// Tallies returns the counts.
func (s *Sockmap) Tallies() (Tallies, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := Tallies{Passed: map[string]Tally{}, Excluded: map[string]uint64{}}
	row := func(n uint32) (sum Tally, err error) {
		var perCPU []bpf.SockmapTally
		if err := s.now.maps[talliesMap].Lookup(n, &perCPU); err != nil {
			return sum, fmt.Errorf("read tallies: %w", err)
		}
		for _, one := range perCPU {
			sum.Count += one.Count
			sum.Bytes += one.Bytes
		}
		return sum, nil
	}
	for n, word := range passings {
		tally, err := row(uint32(n))
		if err != nil {
			return t, err
		}
		if n == 0 {
			t.Redirected = tally
		} else {
			t.Passed[word] = tally
		}
	}
	for n, word := range exclusions[1:] {
		tally, err := row(uint32(bpf.SockmapTallyRowTALLY_EXCLUDED) + uint32(n) + 1)
		if err != nil {
			return t, err
		}
		t.Excluded[word] = tally.Count
	}
	for n, at := range map[bpf.SockmapTallyRow]*uint64{
		bpf.SockmapTallyRowTALLY_WATCHED: &t.Watched, bpf.SockmapTallyRowTALLY_ADMITTED: &t.Admitted,
		bpf.SockmapTallyRowTALLY_LEFT: &t.Left, bpf.SockmapTallyRowTALLY_FULL: &t.Full,
	} {
		tally, err := row(uint32(n))
		if err != nil {
			return t, err
		}
		*at = tally.Count
	}
	return t, nil
}

// Sockets returns how many sockets are in the map, of all versions of the programs.
func (s *Sockmap) Sockets() (count int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if count, err = s.now.sockets(); err != nil {
		return 0, err
	}
	for _, g := range s.older {
		n, err := g.sockets()
		if err != nil {
			return 0, err
		}
		count += n
	}
	return count, nil
}
