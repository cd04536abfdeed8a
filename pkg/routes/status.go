package routes

import (
	"fmt"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// Status is how the agent follows changes of routes and neighbors, on which cached next hops
// depend.
type Status struct {
	Following  bool      `json:"following"`
	Changes    uint64    `json:"changes"` // of which flows were notified, since the start
	LastChange time.Time `json:"lastChange,omitzero"`
	Neighbors  int       `json:"neighbors"`       // number of known neighbors
	IsCrowded  bool      `json:"isCrowded"`       // there are more; any event about those counts as a change
	Error      string    `json:"error,omitempty"` // why changes are not followed

	Flaps  uint64 `json:"-"` // messages about neighbors that change nothing for packets
	Errors uint64 `json:"-"` // times that following failed
}

// Text returns the line shown in the status of the node.
func (w *Status) Text() string {
	if !w.Following {
		return "changes are not followed; every flow looks up its route once a second"
	}
	crowded := ""
	if w.IsCrowded {
		crowded = ", and there are more"
	}
	return fmt.Sprintf("%d changes followed, last %s; %d neighbors%s", w.Changes, phrase.Clock(w.LastChange), w.Neighbors, crowded)
}

// Findings says what keeps the node from doing its job.
func (w *Status) Findings(say func(string, ...any)) {
	if w != nil && w.Error != "" {
		say("Route changes are not followed, so every flow looks up its route once a second, and its packets cost more: %s.",
			w.Error)
	}
}
