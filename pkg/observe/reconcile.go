package observe

import (
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// ReconcileState says how far the maps lag behind the objects.
type ReconcileState struct {
	Dirty        int           `json:"dirty"` // objects and rows that wait to be written
	Passes       uint64        `json:"passes"`
	Errors       uint64        `json:"errors"` // since the start
	LastError    string        `json:"lastError,omitempty"`
	LastDuration time.Duration `json:"lastDurationNanoseconds"`
	LastTime     time.Time     `json:"lastTime,omitzero"`
	Verify       VerifyState   `json:"verify"`
	// Quotas are of the namespaces that want most of each; those of which nobody wants any are
	// missing.
	Quotas []QuotaUse `json:"quotas,omitempty"`
}

// VerifyState counts the agent's periodic checks of the maps against the objects, and what they
// found.
type VerifyState struct {
	Checks   uint64    `json:"checks"`
	Found    uint64    `json:"found"` // differences
	Mended   uint64    `json:"mended"`
	LastTime time.Time `json:"lastTime,omitzero"`
}

func (r *ReconcileState) text() string {
	words := []string{"up to date"}
	if r.Dirty > 0 {
		words[0] = fmt.Sprintf("%d waiting", r.Dirty)
	}
	if !r.LastTime.IsZero() {
		words = append(words, fmt.Sprintf("last pass %s took %s", phrase.Clock(r.LastTime), phrase.Round(r.LastDuration)))
	}
	words = append(words, fmt.Sprintf("%d errors", r.Errors))
	return strings.Join(words, ", ")
}

func (v *VerifyState) text() string {
	return fmt.Sprintf("%d checks, last %s, found %d differences, repaired %d", v.Checks, phrase.Clock(v.LastTime), v.Found, v.Mended)
}

func (r *ReconcileState) findings(say func(string, ...any)) {
	if r != nil && r.LastError != "" {
		say("%d changes wait for a retry: %s.", r.Dirty, r.LastError)
	}
}
