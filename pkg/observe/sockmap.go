package observe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// SockmapStatus is how connections of this node go past TCP.
type SockmapStatus struct {
	On         bool                    `json:"on"`
	Held       bool                    `json:"held"`                // an operator has everything go by TCP
	Pods       int                     `json:"pods"`                // that may take part
	Waiting    int                     `json:"waiting,omitempty"`   // of these, that have no network yet
	Uncovered  map[string]string       `json:"uncovered,omitempty"` // by name: why a pod that should cannot
	Sockets    int                     `json:"sockets"`             // in the map
	Watched    uint64                  `json:"watched"`             // connections of which both ends may take part, ever
	Redirected SockmapTally            `json:"redirected"`          // messages past TCP
	Passed     map[string]SockmapTally `json:"passed,omitempty"`    // messages of sockets in the map that went by TCP, by why
	Excluded   map[string]uint64       `json:"excluded,omitempty"`  // connections that go by TCP for good, by why
	Admitted   uint64                  `json:"admitted"`            // sockets that were put into the map, ever
	Left       uint64                  `json:"left"`                // and taken out before they closed
	Full       uint64                  `json:"full"`                // connections for which there was no room
	Checks     SockmapChecks           `json:"checks"`
	Error      string                  `json:"error,omitempty"` // why nothing goes past TCP although it should
}

// SockmapTally is how many there were, and of how many bytes.
type SockmapTally struct {
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// SockmapChecks is what came of the connections that the agent makes to itself.
type SockmapChecks struct {
	Passed   uint64    `json:"passed"`
	Failed   uint64    `json:"failed"`
	LastTime time.Time `json:"lastTime,omitzero"`
	Unable   string    `json:"unable,omitempty"` // why the last one could not be made
}

func (s *SockmapStatus) text() string {
	switch {
	case s.Error != "":
		return "off, although it should be on"
	case s.Held:
		return `held: everything uses TCP until "fairlead sockmap on"`
	}
	words := []string{fmt.Sprintf("%d pods may take part, %d sockets in the map, %d messages with %s bypassed TCP", s.Pods, s.Sockets, s.Redirected.Count, bytesOf(s.Redirected.Bytes))}
	var excluded uint64
	for _, n := range s.Excluded {
		excluded += n
	}
	words = append(words, fmt.Sprintf("%d of %d connections excluded", excluded, s.Watched))
	switch {
	case s.Checks.Unable != "":
		words = append(words, "not checked: "+s.Checks.Unable)
	case !s.Checks.LastTime.IsZero():
		words = append(words, "checked "+clock(s.Checks.LastTime))
	}
	return strings.Join(words, ", ")
}

// bytesOf writes a number of bytes for people.
func bytesOf(n uint64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	return fmt.Sprintf("%.4g %s", value, unit)
}

func (s *SockmapStatus) judge(say func(string, ...any)) {
	if s == nil {
		return
	}
	if s.Error != "" {
		say("No connection bypasses TCP. This is slower but otherwise correct: %s.", s.Error)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Uncovered)) {
		say("Connections of pod %s use TCP although they may bypass it: %s.", name, s.Uncovered[name])
	}
}
