package source

import (
	"fmt"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// PolicyStatus says that fairlead enforces no NetworkPolicies, and how many the cluster has.
type PolicyStatus struct {
	Enforced bool      `json:"enforced"`        // always false; tells readers of the JSON
	Count    *int      `json:"count,omitempty"` // nil while unknown
	Checked  time.Time `json:"checked,omitzero"`
	Error    string    `json:"error,omitempty"` // why the last attempt to count failed; Count is then older
}

// Text returns the line shown in the status of the node.
func (p *PolicyStatus) Text() string {
	text := "not enforced by fairlead"
	if p.Count != nil {
		text += fmt.Sprintf("; the cluster has %d, counted %s", *p.Count, phrase.Clock(p.Checked))
	}
	if p.Error != "" {
		text += "; they could not be counted: " + p.Error
	}
	return text
}
