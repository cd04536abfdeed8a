package fabric

import "fmt"

// Status is how packets get to the pods of other nodes.
type Status struct {
	Mode    string   `json:"mode"` // none, native or vxlan
	Nodes   int      `json:"nodes"`
	Routes  int      `json:"routes"`
	Pending bool     `json:"pending,omitempty"` // the routes have not been written yet since the agent's start
	Refused []string `json:"refused,omitempty"` // networks that nodes claim but do not get, and why
	Left    []string `json:"left,omitempty"`    // networks for which fairlead makes no route, and why
	Mended  uint64   `json:"mended"`            // routes and neighbors that were lost and restored
	Error   string   `json:"error,omitempty"`
	Changes uint64   `json:"changes"` // to routes and neighbors, sent to the kernel
}

// Text returns the line shown in the status of the node.
func (r *Status) Text() string {
	if r.Mode == "none" {
		return "; the network routes to other nodes' pods"
	}
	text := fmt.Sprintf("; %s to the pods of %d nodes, %d routes", r.Mode, r.Nodes, r.Routes)
	if len(r.Left) > 0 {
		text += fmt.Sprintf(", %d networks left alone, the first is %s", len(r.Left), r.Left[0])
	}
	if r.Mended > 0 {
		text += fmt.Sprintf(", %d lost routes and neighbors restored", r.Mended)
	}
	return text
}

// Findings says what keeps the node from doing its job.
func (r *Status) Findings(say func(string, ...any)) {
	if r == nil {
		return
	}
	switch {
	case r.Error != "":
		say("Pods on other nodes may be unreachable: %s.", r.Error)
	case r.Pending:
		say("Pods on other nodes may be unreachable: the routes to them are not written yet.")
	}
	if len(r.Refused) > 0 {
		say("%d networks that nodes claim for their pods get no route. The first is: %s.", len(r.Refused), r.Refused[0])
	}
}
