package life

import (
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// Status is how the agent itself is doing.
type Status struct {
	// Killed counts the agents since the node started that ended without having been told to.
	Killed       int       `json:"killed"`
	KilledLately int       `json:"killedLately,omitempty"` // within KilledPeriod
	LastKilled   time.Time `json:"lastKilled,omitzero"`
	// MemoryUsed is what counts against MemoryLimit, which the file MemoryFile sets; all are zero if
	// there is no limit.
	MemoryUsed  uint64 `json:"memoryUsedBytes,omitempty"`
	MemoryLimit uint64 `json:"memoryLimitBytes,omitempty"`
	MemoryFile  string `json:"memoryFile,omitempty"`
}

const (
	// KilledPeriod is how long an agent's end counts as recent.
	KilledPeriod = 10 * time.Minute
	// killedOften is how many recent ends degrade the node. A few may be somebody's doing; a kubelet
	// that restarts an agent which always fails gets to more.
	killedOften = 5
	// nearLimit is the part of the memory limit from which on the kernel may soon kill the agent.
	nearLimit = 0.9
)

// Text returns the line shown in the status of the node.
func (a *Status) Text() string {
	if a == nil {
		return ""
	}
	var words []string
	if a.MemoryLimit > 0 {
		words = append(words, fmt.Sprintf("uses %s of %s", phrase.Bytes(a.MemoryUsed), phrase.Bytes(a.MemoryLimit)))
	}
	if a.Killed > 0 {
		words = append(words, fmt.Sprintf("ended %d times without having been told to since the node started, last %s", a.Killed, phrase.Clock(a.LastKilled)))
	}
	return strings.Join(words, "; ")
}

// Findings says what keeps the agent from running.
func (a *Status) Findings(say func(string, ...any)) {
	if a == nil {
		return
	}
	if a.KilledLately >= killedOften {
		say("The agent has ended %d times in the last %d minutes without having been told to, the last time at %s. \"kubectl logs --previous\" shows why. "+
			"If it does not, the kernel has killed the agent, as a rule for lack of memory: compare \"fairlead preflight\" with resources.limits.memory. "+
			"Unless it ends again, this is over by %s.", a.KilledLately, int(KilledPeriod.Minutes()), phrase.Clock(a.LastKilled), phrase.Clock(a.LastKilled.Add(KilledPeriod)))
	}
	if a.MemoryLimit > 0 && float64(a.MemoryUsed) >= nearLimit*float64(a.MemoryLimit) {
		say("The agent uses %s of the %s of memory that it may use (%s), and the kernel kills it if it needs more: "+
			"raise resources.limits.memory, or allow fewer flows (--conntrack-max).", phrase.Bytes(a.MemoryUsed), phrase.Bytes(a.MemoryLimit), a.MemoryFile)
	}
}
