package reconcile

import (
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// Status says how far the maps lag behind the objects.
type Status struct {
	Dirty        int           `json:"dirty"` // objects and rows that wait to be written
	Passes       uint64        `json:"passes"`
	Errors       uint64        `json:"errors"` // since the start
	LastError    string        `json:"lastError,omitempty"`
	LastDuration time.Duration `json:"lastDurationNanoseconds"`
	LastTime     time.Time     `json:"lastTime,omitzero"`
	Verify       VerifyStatus  `json:"verify"`
	// Quotas are of the namespaces that want most of each; those of which nobody wants any are
	// missing.
	Quotas []QuotaUse `json:"quotas,omitempty"`
}

// VerifyStatus counts the periodic checks of the maps against the objects, and what they
// found.
type VerifyStatus struct {
	Checks   uint64    `json:"checks"`
	Found    uint64    `json:"found"` // differences
	Mended   uint64    `json:"mended"`
	LastTime time.Time `json:"lastTime,omitzero"`
}

// Status returns how far the maps lag behind the objects.
func (r *Reconciler) Status() *Status {
	stats := r.Stats()
	s := &Status{
		Dirty: stats.Pending, Passes: stats.Passes, Errors: stats.Errors, LastError: stats.LastError,
		LastDuration: stats.LastDuration, LastTime: stats.LastPass,
		Verify: VerifyStatus{Checks: stats.Checks, Found: stats.Damage, Mended: stats.Repaired, LastTime: stats.LastCheck},
	}
	for _, use := range stats.Quotas {
		if use.Wanted > 0 && use.Limit > 0 {
			s.Quotas = append(s.Quotas, use)
		}
	}
	return s
}

// Text returns the line shown in the status of the node.
func (r *Status) Text() string {
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

// Text returns the line shown in the status of the node.
func (v *VerifyStatus) Text() string {
	return fmt.Sprintf("%d checks, last %s, found %d differences, repaired %d", v.Checks, phrase.Clock(v.LastTime), v.Found, v.Mended)
}

// Findings says what keeps the node from doing its job.
func (r *Status) Findings(say func(string, ...any)) {
	if r != nil && r.LastError != "" {
		say("%d changes wait for a retry: %s.", r.Dirty, r.LastError)
	}
}

// QuotaText names the quota of which least is left.
func (r *Status) QuotaText() string {
	text, most := "", -1.0
	for _, u := range r.Quotas {
		if share := float64(u.Wanted) / float64(u.Limit); share > most {
			most = share
			text = fmt.Sprintf("namespace %s wants %d of %d %s", phrase.Printable(u.Namespace), u.Wanted, u.Limit, u.Quota)
		}
	}
	return text
}
