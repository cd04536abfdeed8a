package datapath

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// Attachment is the result of the last check of this process's own programs.
type Attachment struct {
	Checked time.Time `json:"checked"`         // zero before the first check
	Mended  uint64    `json:"mended"`          // links that were detached or changed by others and repaired, since the start
	Error   string    `json:"error,omitempty"` // why something could not be repaired
	Proofs  []Proof   `json:"families"`
}

// Err returns why something could not be repaired.
func (a *Attachment) Err() error {
	if a.Error == "" {
		return nil
	}
	return errors.New(a.Error)
}

// sound reports whether nothing is left to repair.
func (a *Attachment) sound() bool {
	return a.Error == "" && !slices.ContainsFunc(a.Proofs, func(p Proof) bool { return p.State == Missed })
}

// grouped calls visit for each state and reason, with the families that share them.
func (a *Attachment) grouped(visit func(families string, proof Proof)) {
	for i, p := range a.Proofs {
		names := []string{p.Family}
		first := true
		for j, other := range a.Proofs {
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

// Text returns the line shown in the status of the node.
func (a *Attachment) Text() string {
	var words []string
	a.grouped(func(families string, p Proof) {
		text := fmt.Sprintf("%s %s", families, p.State)
		if p.Why != "" {
			text += " (" + p.Why + ")"
		}
		words = append(words, text)
	})
	words = append(words, "checked "+phrase.Clock(a.Checked), fmt.Sprintf("%d links repaired", a.Mended))
	return strings.Join(words, ", ")
}

// Findings says what keeps the programs from doing their job.
func (a *Attachment) Findings(cgroup string, say func(format string, args ...any)) {
	if a == nil {
		return
	}
	if a.Error != "" {
		say("Programs cannot be reattached: %s.", a.Error)
	}
	a.grouped(func(families string, p Proof) {
		if p.State == Missed {
			say("The programs are attached to %s, but the agent's own test connections over %s do not go through them (%s). Pods' connections may not either. "+
				"Check that all pods are below the cgroup in --cgroup-root, and what else is attached there (\"bpftool cgroup tree\").",
				cgroup, families, p.Why)
		}
	})
}
