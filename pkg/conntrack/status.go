package conntrack

import (
	"fmt"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// nearlyFull is the fill level from which a status reports that the map of flows is nearly full.
const nearlyFull = 0.9

// Status is how many flows are tracked, as of the agent's last pass over them. A flow has a row
// for each direction.
type Status struct {
	Rows            int           `json:"rows"` // of established flows
	Capacity        int           `json:"capacity"`
	Most            int           `json:"most"`    // the limit to which the capacity may grow
	Growths         uint64        `json:"growths"` // of the capacity, since the start
	PendingRows     int           `json:"pendingRows"`
	PendingCapacity int           `json:"pendingCapacity"`
	Forgotten       uint64        `json:"forgotten"` // number of flows removed
	LastTime        time.Time     `json:"lastTime,omitzero"`
	LastDuration    time.Duration `json:"lastDurationNanoseconds"`
	Error           string        `json:"error,omitempty"`     // why finished flows are not removed
	GrowError       string        `json:"growError,omitempty"` // why the capacity does not grow
}

// Status returns the counts as a status of the node, or nil before the first pass. why says what keeps flows from
// being removed.
func (s *Stats) Status(why string) *Status {
	if s.LastPass.IsZero() && why == "" {
		return nil
	}
	return &Status{
		Rows: s.Rows[0], Capacity: s.Capacity[0], Most: s.Most, Growths: s.Growths, GrowError: s.GrowError,
		PendingRows: s.Rows[1], PendingCapacity: s.Capacity[1],
		Forgotten: s.Idle + s.Stale, LastTime: s.LastPass, LastDuration: s.LastTook, Error: why,
	}
}

// Text returns the line shown in the status of the node.
func (f *Status) Text() string {
	return fmt.Sprintf("%d of %d rows (at most %d), %d of %d half open, last pass %s took %s, removed %d flows", f.Rows, f.Capacity, max(f.Most, f.Capacity),
		f.PendingRows, f.PendingCapacity, phrase.Clock(f.LastTime), phrase.Round(f.LastDuration), f.Forgotten)
}

// Findings says what keeps the node from doing its job.
func (f *Status) Findings(say func(string, ...any)) {
	if f == nil {
		return
	}
	if f.Error != "" {
		say("Flows that are over are not removed: %s.", f.Error)
	}
	if f.GrowError != "" {
		say("The map of flows cannot grow: %s.", f.GrowError)
	}
	if f.Capacity > 0 && float64(f.Rows) >= nearlyFull*float64(f.Capacity) {
		cure := ""
		if f.Capacity >= f.Most {
			cure = "; the map may not grow further: raise the option conntrack-max, or spread the clients over more nodes"
		}
		say("The map of flows has %d rows, and %d are in use: new connections from outside may be interrupted%s.", f.Capacity, f.Rows, cure)
	}
}
