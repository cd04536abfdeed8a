// Package observe composes the state of a node for people and programs, and says what degrades it.
package observe

import (
	"fmt"
	"time"

	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/routes"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/pkg/source"
)

// Status is the state of an agent or, without one, what the pinned maps and links show.
type Status struct {
	Version   string            `json:"version,omitempty"`
	Mode      string            `json:"mode,omitempty"` // "accelerate-only" if the agent runs nothing but Sockmap; else empty
	Node      string            `json:"node,omitempty"`
	Started   time.Time         `json:"started,omitzero"`
	Agent     *life.Status      `json:"agent,omitempty"`     // nil without an agent
	Source    *source.Status    `json:"source,omitempty"`    // nil without an agent
	Reconcile *reconcile.Status `json:"reconcile,omitempty"` // nil without an agent, or before the maps exist
	// ServiceRanges is nil without an agent, or if it serves no Services.
	ServiceRanges *model.ServiceRanges `json:"serviceRanges,omitempty"`
	Datapath      datapath.Status      `json:"datapath"`
	OptOut        *optout.Status       `json:"optOut,omitempty"` // nil without an agent
	Flows         *conntrack.Status    `json:"flows,omitempty"`  // nil without an agent, or before its first look
	Snat          *mapstats.SnatPorts  `json:"snat,omitempty"`   // nil without an agent
	Routes        *routes.Status       `json:"routes,omitempty"` // likewise
	// PodNetwork is nil without an agent, or if pods get their network from another plugin.
	PodNetwork *PodNetwork `json:"podNetwork,omitempty"`
	// Disbelieved are the claims of Nodes to addresses and networks that this node does not believe.
	Disbelieved []string `json:"disbelievedNodes,omitempty"`
	// Sockmap is nil without an agent, or if no connection may bypass TCP.
	Sockmap *sockmap.Status `json:"sockmap,omitempty"`
	// Policies is nil without an agent, or if it does not ask an API server.
	Policies *source.PolicyStatus `json:"networkPolicies,omitempty"`
	// Enforced is nil without an agent, or with --policies=off.
	Enforced *policies.Status `json:"policies,omitempty"`
	// Pins is nil without an agent, or before it has maps.
	Pins      *datapath.Pins        `json:"pins,omitempty"`
	Fragments mapstats.Fragments    `json:"fragments"`
	Services  int                   `json:"services"`
	Frontends int                   `json:"frontends"`
	Backends  int                   `json:"backends"`
	Maps      []mapstats.Map        `json:"maps"`
	Problems  []model.ObjectProblem `json:"problems"`
	// Degraded has a sentence for everything that keeps this node from doing its job; see FindProblems.
	Degraded []string `json:"degraded"`
}

// NewStatus returns a Status with what the pins show.
func NewStatus(pinned *mapstats.Pinned) Status {
	s := Status{Maps: pinned.Maps, Fragments: pinned.Fragments, Problems: []model.ObjectProblem{}, Degraded: []string{}}
	s.Services, s.Frontends, s.Backends = pinned.Counts()
	return s
}

// FindProblems fills in Degraded from everything else. A problem of an object does not degrade the node:
// it is for the object's author to solve, and the node does what it was told. FindProblems replaces nil
// lists with empty ones, as readers of JSON expect.
func (s *Status) FindProblems() {
	s.Degraded = []string{}
	s.Maps, s.Problems, s.Datapath.Programs = list(s.Maps), list(s.Problems), list(s.Datapath.Programs)
	say := func(format string, args ...any) { s.Degraded = append(s.Degraded, fmt.Sprintf(format, args...)) }
	s.Source.Findings(say)
	s.Reconcile.Findings(say)
	switch {
	case s.Mode != "" && s.Sockmap == nil:
		say("No connection bypasses TCP yet.")
	case s.Mode == "":
		s.servingFindings(say)
	}
	for _, p := range s.Datapath.Programs {
		if !p.Attached && !p.Idle {
			say("Program %s is not attached, so its function does not work.", p.Name)
		}
	}
	s.Agent.Findings(say)
	s.Pins.Findings(say)
	s.Datapath.Attachment.Findings(s.Datapath.CgroupRoot, say)
	s.Datapath.Outside.Findings(say)
	s.Flows.Findings(say)
	s.Snat.Findings(say)
	for i := range s.Maps {
		s.Maps[i].Findings(say)
	}
	s.Routes.Findings(say)
	s.PodNetwork.allFindings(say)
	s.Enforced.Findings(say)
	if n := len(s.Disbelieved); n > 0 {
		say("%d claims of Nodes to addresses or networks are not believed, and what comes from there is not taken for that node's. The first is: %s. "+
			"Correct the Node object, or find out who changes it.", n, s.Disbelieved[0])
	}
	s.Sockmap.Findings(say)
}

// servingFindings reports what a node that serves Services cannot do without.
func (s *Status) servingFindings(say func(string, ...any)) {
	if len(s.Maps) == 0 && (s.Pins == nil || len(s.Pins.Missing) == 0) {
		say("There are no maps.")
	}
	if len(s.Datapath.Programs) == 0 {
		say("No program is attached: connections to services fail.")
	}
}

func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
