package masquerade

import "fmt"

// Status is the state of the file that lists networks to which pods send under their own
// addresses.
type Status struct {
	File     string `json:"file"`
	Networks int    `json:"networks"`        // in its last good version
	Error    string `json:"error,omitempty"` // why the present version cannot be used
}

// Text returns the line shown in the status of the node.
func (m *Status) Text() string {
	return fmt.Sprintf("; %d networks in %s are not masqueraded", m.Networks, m.File)
}

// Findings says what keeps the node from doing its job.
func (m *Status) Findings(say func(string, ...any)) {
	if m != nil && m.Error != "" {
		say("The masquerade configuration %s cannot be used. The %d networks of the last good one apply: %s.", m.File, m.Networks, m.Error)
	}
}
