package datapath

import (
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// Pins says what others have done to the pins of the maps, since the start.
type Pins struct {
	Missing  []string  `json:"missing,omitempty"` // paths of pins that are gone now, or are of something else; filled in by who reads the maps
	Restored uint64    `json:"restored"`          // pins that were found gone or replaced and were made again, since the start
	Last     []string  `json:"last,omitempty"`    // names of the maps whose pins were restored last
	LastTime time.Time `json:"lastTime,omitzero"`
	Error    string    `json:"error,omitempty"` // why they cannot be restored, as of the last look
}

// Text returns the line shown in the status of the node.
func (p *Pins) Text() string {
	return fmt.Sprintf("%d restored that somebody had removed, last %s of %s", p.Restored, phrase.Clock(p.LastTime), strings.Join(p.Last, ", "))
}

// mostPins is how many pins a sentence names.
const mostPins = 3

// Findings says what others have removed, and what it means.
func (p *Pins) Findings(say func(string, ...any)) {
	if p == nil {
		return
	}
	if n := len(p.Missing); n > 0 {
		named := strings.Join(p.Missing[:min(n, mostPins)], ", ")
		if n > mostPins {
			named += fmt.Sprintf(" and %d more", n-mostPins)
		}
		cure := "The agent pins them again within seconds."
		if p.Error != "" {
			cure = "Until they are pinned again, do not restart the agent: the next one would make empty maps in their place."
		}
		say("Somebody has removed or replaced pins: %s. The maps go on, but commands cannot read them. %s", named, cure)
	}
	if p.Error != "" {
		say("Pins of maps cannot be restored: %s.", p.Error)
	}
}
