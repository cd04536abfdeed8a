package sockmap

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/phrase"
)

// Status is the state of connections on this node that bypass TCP.
type Status struct {
	State
	RuleStatus
	Tallies
	Checks Checked `json:"checks"`
	// Differences lists how connections that bypass TCP differ from TCP, as found on this kernel.
	Differences []string `json:"differences,omitempty"`
	Error       string   `json:"error,omitempty"`  // why nothing bypasses TCP although it should
	Unread      string   `json:"unread,omitempty"` // why the counts and switches are missing
}

// Status returns the state, with that of the pods that may take part.
func (s *Sockmap) Status(pods RuleStatus) *Status {
	status := &Status{RuleStatus: pods, Checks: s.Checked()}
	status.Error = status.Checks.Fault
	var err error
	if status.State, err = s.State(); err == nil {
		status.Tallies, err = s.Tallies()
	}
	if err != nil {
		status.Unread = err.Error()
	}
	return status
}

// Text returns the line shown in the status of the node.
func (s *Status) Text() string {
	switch {
	case s.Error != "":
		return "off, although it should be on"
	case s.Unread != "":
		return "unknown: " + s.Unread
	case s.Held:
		return `held: everything uses TCP until "fairlead sockmap on"`
	}
	words := []string{fmt.Sprintf("%d pods may take part, %d sockets in the map, %d messages with %s bypassed TCP", s.Pods, s.Sockets, s.Redirected.Count, bytesOf(s.Redirected.Bytes))}
	if s.Rated > 0 {
		words = append(words, fmt.Sprintf("%d pods with a rate may not", s.Rated))
	}
	if s.Judged > 0 {
		words = append(words, fmt.Sprintf("%d pods that policies are about may not", s.Judged))
	}
	var excluded uint64
	for _, n := range s.Excluded {
		excluded += n
	}
	words = append(words, fmt.Sprintf("%d of %d connections excluded", excluded, s.Watched))
	switch {
	case s.Checks.Unable != "":
		words = append(words, "not checked: "+s.Checks.Unable)
	case !s.Checks.LastTime.IsZero():
		words = append(words, "checked "+phrase.Clock(s.Checks.LastTime))
	}
	if len(s.Differences) > 0 {
		words = append(words, "differs from TCP: "+strings.Join(s.Differences, ", "))
	}
	return strings.Join(words, ", ")
}

// bytesOf formats a number of bytes.
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

// Findings says what keeps the node from doing its job.
func (s *Status) Findings(say func(string, ...any)) {
	if s == nil {
		return
	}
	switch {
	case s.Error != "" && s.Stale != "":
		say("No connection should bypass TCP: %s. Some may: %s.", s.Error, s.Stale)
	case s.Error != "":
		say("No connection bypasses TCP. This is slower but otherwise correct: %s.", s.Error)
	case s.Stale != "":
		say("Connections bypass TCP by rules that are out of date: %s.", s.Stale)
	}
	if s.Unread != "" {
		say("What bypasses TCP is unknown: %s.", s.Unread)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Uncovered)) {
		say("Connections of pod %s use TCP although they may bypass it: %s.", name, s.Uncovered[name])
	}
	if more := s.NotCovered - len(s.Uncovered); more > 0 {
		say("So do those of %d more pods.", more)
	}
}
