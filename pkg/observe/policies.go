package observe

import (
	"fmt"
	"time"
)

// PolicyStatus says how many NetworkPolicies there are that nobody should take to be enforced by fairlead.
type PolicyStatus struct {
	Enforced bool      `json:"enforced"`        // never; for who reads no documentation
	Count    *int      `json:"count,omitempty"` // nil while it is not known
	Checked  time.Time `json:"checked,omitzero"`
	Error    string    `json:"error,omitempty"` // why the last look told nothing; Count is then from before it
}

func (p *PolicyStatus) text() string {
	text := "not enforced by fairlead"
	if p.Count != nil {
		text += fmt.Sprintf("; the cluster has %d, counted %s", *p.Count, clock(p.Checked))
	}
	if p.Error != "" {
		text += "; they could not be counted: " + p.Error
	}
	return text
}
