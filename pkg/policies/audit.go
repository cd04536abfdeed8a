package policies

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// maxCut is how many flows an Audit lists.
const maxCut = 1000

// Cut is a flow that policies would end.
type Cut struct {
	Source      netip.AddrPort `json:"source"` // who began it
	Destination netip.AddrPort `json:"destination"`
	Protocol    string         `json:"protocol"`
	Pod         model.Name     `json:"pod"` // whose policies deny it
	Direction   string         `json:"direction"`
	Policy      string         `json:"policy,omitempty"`
	Rule        int            `json:"rule,omitempty"`
	By          string         `json:"by"` // in words
	Unsure      bool           `json:"unsure,omitempty"`
}

// Audit is what policies would do that are not in force yet.
type Audit struct {
	Policies []string `json:"policies"` // that were looked at
	Flows    int      `json:"flows"`    // that were looked at
	Total    int      `json:"total"`    // of flows that would be cut
	Cut      []Cut    `json:"cut"`
	Notes    []string `json:"notes,omitempty"`
}

// Audit says which flows policies would cut that are accepted now: flows calls its argument with each. The
// policies are added to those in force, or take the place of those with the same name. Nothing that is in force
// changes.
func (c *Controller) Audit(list []*model.NetworkPolicy, flows func(func(*policy.Flow)) error) (Audit, error) {
	a := Audit{Policies: []string{}, Cut: []Cut{}}
	c.mu.Lock()
	for _, p := range list {
		name := policy.ObjectName(p.Name, p.Tier)
		verb := "added"
		if slices.ContainsFunc(c.compiler.Policies(), func(o *model.NetworkPolicy) bool { return o.Name == p.Name }) {
			verb = "replaced"
		}
		a.Policies = append(a.Policies, name+" ("+verb+")")
		for _, problem := range p.Problems {
			a.Notes = append(a.Notes, fmt.Sprintf("%s: %s: %s", name, problem.Reason, problem.Message))
		}
	}
	next, now, listed := policy.Fork(c.compiler, list), policy.Fork(c.compiler, nil), c.listed
	c.mu.Unlock()
	unsure := !listed && next.NeedsPods()
	if unsure { // at least those of this node are known
		for _, pod := range next.Local() {
			next.SetPod(pod)
			now.SetPod(pod)
		}
		a.Notes = append(a.Notes, "No policy in force needs the pods of other nodes, so their labels are not known here: flows of other addresses that are "+
			"no pods of this node may be accepted all the same, and are marked.")
	}
	next.Update()
	now.Update()
	for namespace, problems := range next.Tables().Problems {
		a.Notes = append(a.Notes, fmt.Sprintf("namespace %s: %s", namespace, problems[0].Message))
	}
	slices.Sort(a.Notes)
	err := flows(func(f *policy.Flow) { a.look(f, now.Tables(), next, unsure) })
	slices.SortFunc(a.Cut, func(x, y Cut) int {
		return cmp.Or(x.Pod.Compare(y.Pod), cmp.Compare(x.By, y.By), x.Source.Compare(y.Source), x.Destination.Compare(y.Destination))
	})
	return a, err
}

// look adds a flow, and notes if it would be cut.
func (a *Audit) look(f *policy.Flow, now *policy.Tables, after *policy.Compiler, unsure bool) {
	pod, found := now.Pods[f.Subject]
	// What pods with policies send and receive is judged in any case; of what is translated, their other
	// rows say the same.
	if !found || !f.Judged && pod.Subject != 0 {
		return
	}
	a.Flows++
	if f.ByNode || f.Subject == f.Peer {
		return
	}
	next := after.Tables()
	verdict := next.Decide(next.Pods[f.Subject].Subject, f.Direction, f.Peer, f.Protocol, f.Port)
	if verdict.Accepted || !now.Decide(pod.Subject, f.Direction, f.Peer, f.Protocol, f.Port).Accepted {
		return
	}
	if a.Total++; len(a.Cut) >= maxCut {
		return
	}
	_, known := after.Namespace(f.Peer)
	protocol := "other"
	if f.Protocol != model.AnyProtocol {
		protocol = f.Protocol.String()
	}
	a.Cut = append(a.Cut, Cut{
		Source: f.Source, Destination: f.Destination, Protocol: protocol, Pod: pod.Pod, Direction: f.Direction.String(),
		Policy: verdict.Rule.Object(), Rule: verdict.Rule.Position(), By: verdict.Rule.String(), Unsure: unsure && !known,
	})
}
