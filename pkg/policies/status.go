package policies

import (
	"fmt"
	"slices"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// Status is how policies are enforced on this node.
type Status struct {
	Mode                   string        `json:"mode"`
	Waiting                string        `json:"waiting,omitempty"` // for what; what was enforced stays enforced
	NetworkPolicies        int           `json:"networkPolicies"`
	ClusterNetworkPolicies int           `json:"clusterNetworkPolicies"`
	Pods                   int           `json:"pods"`        // of this node that a policy is about
	ClusterPods            int           `json:"clusterPods"` // whose labels and addresses are known; 0 if nobody needs them
	Subjects               int           `json:"subjects"`
	Classes                int           `json:"classes"` // that addresses are told apart by
	Peers                  int           `json:"peers"`   // addresses with a class of their own
	Decisions              int           `json:"decisions"`
	Rules                  int           `json:"rules"`
	Generation             uint32        `json:"generation"` // the last that a pod got
	Updates                uint64        `json:"updates"`
	Errors                 uint64        `json:"errors"`           // attempts to write a change that failed
	Written                time.Time     `json:"written,omitzero"` // the last change
	Took                   time.Duration `json:"took"`
	Refused                []string      `json:"refused,omitempty"` // namespaces whose policies are too many
	Error                  string        `json:"error,omitempty"`
	OldestChange           time.Time     `json:"oldestChange,omitzero"` // since when the oldest change that is not in force waits
	// Rows are how many rows of each map the policies in force take, by the map's name.
	Rows   map[string]int `json:"-"`
	Damage uint64         `json:"damage,omitempty"` // rows that differed in regular comparisons
	Mended uint64         `json:"mended,omitempty"`
	Room   *Room          `json:"room,omitempty"` // nil if it cannot be read
}

// Text returns the line shown in the status of the node.
func (s *Status) Text() string {
	text := fmt.Sprintf("%s, %d NetworkPolicies and %d ClusterNetworkPolicies about %d pods of this node, %d rules", s.Mode, s.NetworkPolicies,
		s.ClusterNetworkPolicies, s.Pods, s.Rules)
	if s.Room != nil {
		text += fmt.Sprintf(", %d of %d flows", s.Room.Flows, s.Room.Of)
	}
	if s.Waiting != "" {
		text += "; waiting for " + s.Waiting
	}
	return text
}

// Findings says what keeps the node from doing its job.
func (s *Status) Findings(say func(string, ...any)) {
	if s == nil {
		return
	}
	if s.Error != "" {
		say("Policies are enforced as they were, since changes cannot be written: %s.", s.Error)
	}
	if len(s.Refused) > 0 {
		say("The pods that policies select in %d namespaces are denied everything, since the policies are too many. The first is %s.", len(s.Refused), s.Refused[0])
	}
	s.Room.findings(say)
}

// Status returns the state as of the last change.
func (c *Controller) Status() *Status {
	c.answers.Lock()
	defer c.answers.Unlock()
	status := c.status
	status.Waiting = c.waiting()
	status.OldestChange = c.lag.oldest()
	return &status
}

// waiting says for what the last step waited, and why it does not come if that is known.
func (c *Controller) waiting() string {
	if c.status.Waiting != podsOfAllNodes || c.why == nil {
		return c.status.Waiting
	}
	if why := c.why(); why != "" {
		return podsOfAllNodes + ": " + why
	}
	return podsOfAllNodes
}

// note records what a step did.
func (c *Controller) note(change *policy.Change, begun time.Time, around *Around, err error) {
	c.answers.Lock()
	defer c.answers.Unlock()
	s, t := &c.status, c.compiler.Tables()
	c.names.follow(change, t)
	s.Waiting, s.Refused = "", nil
	s.NetworkPolicies, s.ClusterNetworkPolicies = len(c.fed.policies)-c.fed.cluster, c.fed.cluster
	judged := map[model.Name]struct{}{}
	for _, row := range t.Pods {
		if row.Subject != 0 {
			judged[row.Pod] = struct{}{}
		}
	}
	for namespace := range t.Problems {
		s.Refused = append(s.Refused, namespace)
	}
	slices.Sort(s.Refused)
	s.Pods, s.ClusterPods, s.Subjects, s.Classes, s.Peers = len(judged), c.compiler.Pods(), len(t.Subjects), t.Classes(), len(t.Peers)
	s.Decisions, s.Rules, s.Generation = len(t.Rows), len(t.Rules)-int(policy.FirstRule), c.compiler.Generation()
	s.Rows = around.Writer.Rows()
	if s.Error = ""; err != nil {
		s.Error = err.Error()
		s.Errors++
	} else if change.Size() > 0 {
		s.Updates++
		s.Written, s.Took = time.Now(), time.Since(begun)
	}
	if waited, counts := c.lag.end(time.Now(), change.Size() > 0, err); counts && around.Applied != nil {
		around.Applied(waited)
	}
}

// report reports what is wrong with policies, each problem once. Those of a namespace are reported on its
// first policy.
func (c *Controller) report() {
	found := map[model.Key][]model.Problem{}
	first := map[string]*model.NetworkPolicy{}
	for _, p := range c.fed.policies {
		if len(p.Problems) > 0 {
			found[p.Key()] = p.Problems
		}
		if other := first[p.Namespace]; other == nil || p.Name.Compare(other.Name) < 0 {
			first[p.Namespace] = p
		}
	}
	for namespace, problems := range c.compiler.Tables().Problems {
		if p := first[namespace]; p != nil {
			found[p.Key()] = append(slices.Clip(found[p.Key()]), problems...)
		}
	}
	for key, problems := range found {
		for _, problem := range problems {
			if !slices.Contains(c.reported[key], problem) && c.Report != nil {
				c.Report(key, c.fed.policies[key.Name].UID, problem)
			}
		}
	}
	c.reported = found
}
