package observe

import (
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// AttachmentStatus is the result of the agent's last check of its own programs.
type AttachmentStatus struct {
	Checked  time.Time     `json:"checked"`
	Mended   uint64        `json:"mended"` // links that were detached or changed by others and repaired, since the start
	Error    string        `json:"error,omitempty"`
	Families []FamilyProof `json:"families"`
}

// FamilyProof says whether a test socket of the agent met the programs of a family.
type FamilyProof struct {
	Family string     `json:"family"`
	State  ProofState `json:"state"`
	Why    string     `json:"why,omitempty"`
}

// ProofState is "proven", "missed", "absent" if the node has no such sockets, or "unknown" if the
// agent's test socket proves nothing.
type ProofState string

// The states that this package distinguishes.
const (
	proven ProofState = "proven"
	missed ProofState = "missed"
)

// Proven reports whether the programs of the family work. If known is false, it cannot be said.
func (p FamilyProof) Proven() (proves, known bool) {
	return p.State == proven, p.State == proven || p.State == missed
}

// grouped calls visit for each state and reason, with the families that share them.
func (a *AttachmentStatus) grouped(visit func(families string, proof FamilyProof)) {
	for i, p := range a.Families {
		names := []string{p.Family}
		first := true
		for j, other := range a.Families {
			same := other.State == p.State && other.Why == p.Why
			first = first && (j >= i || !same)
			if j > i && same {
				names = append(names, other.Family)
			}
		}
		if first {
			visit(strings.Join(names, " and "), p)
		}
	}
}

// text returns the line shown in the status.
func (a *AttachmentStatus) text() string {
	var words []string
	a.grouped(func(families string, p FamilyProof) {
		text := fmt.Sprintf("%s %s", families, p.State)
		if p.Why != "" {
			text += " (" + p.Why + ")"
		}
		words = append(words, text)
	})
	words = append(words, "checked "+phrase.Clock(a.Checked), fmt.Sprintf("%d links repaired", a.Mended))
	return strings.Join(words, ", ")
}

// findings says what keeps the programs from doing their job.
func (a *AttachmentStatus) findings(cgroup string, say func(format string, args ...any)) {
	if a == nil {
		return
	}
	if a.Error != "" {
		say("Programs cannot be reattached: %s.", a.Error)
	}
	a.grouped(func(families string, p FamilyProof) {
		if p.State == missed {
			say("The programs are attached to %s, but the agent's own test connections over %s do not go through them (%s). Pods' connections may not either. "+
				"Check that all pods are below the cgroup in --cgroup-root, and what else is attached there (\"bpftool cgroup tree\").",
				cgroup, families, p.Why)
		}
	})
}
