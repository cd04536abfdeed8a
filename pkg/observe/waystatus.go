package observe

import (
	"fmt"
	"time"
)

// WayStatus is how the agent follows what the ways of packets depend on.
type WayStatus struct {
	Following  bool      `json:"following"`
	Changes    uint64    `json:"changes"` // that flows were told of, since the start
	LastChange time.Time `json:"lastChange,omitzero"`
	Neighbours int       `json:"neighbours"`      // that are known
	IsCrowded  bool      `json:"isCrowded"`       // there are more, and what becomes of those is always a change
	Error      string    `json:"error,omitempty"` // why nobody follows
}

func (w *WayStatus) text() string {
	if !w.Following {
		return "changes are not followed, every flow asks for its way once a second"
	}
	crowded := ""
	if w.IsCrowded {
		crowded = ", and there are more"
	}
	return fmt.Sprintf("changes are followed: %d, the last %s; %d neighbours%s", w.Changes, clock(w.LastChange), w.Neighbours, crowded)
}

func (w *WayStatus) judge(say func(string, ...any)) {
	if w != nil && w.Error != "" {
		say("Packets of established flows cost more, since changes of routes are not followed and every flow asks for its way once a second: %s.",
			w.Error)
	}
}
