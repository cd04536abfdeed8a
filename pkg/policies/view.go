package policies

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// PolicySummary is a policy that selects pods of this node.
type PolicySummary struct {
	Policy     string          `json:"policy"`     // "networkpolicy shop/web", "clusternetworkpolicy admin/isolate"
	Directions []string        `json:"directions"` // those that it isolates, or has rules for
	Rules      int             `json:"rules"`
	Pods       int             `json:"pods"` // of this node that it selects
	Problems   []model.Problem `json:"problems,omitempty"`
}

// RuleView is a rule in words. Peers and Ports are alternatives.
type RuleView struct {
	Policy    string   `json:"policy"`
	Direction string   `json:"direction"`
	Rule      int      `json:"rule"` // its position, from 1
	Label     string   `json:"label,omitempty"`
	Action    string   `json:"action"`
	Peers     []string `json:"peers"`
	Ports     []string `json:"ports"`
}

// PolicyView is a policy with the pods of this node that it selects.
type PolicyView struct {
	PolicySummary
	Selects  string       `json:"selects"`
	Names    []model.Name `json:"podNames"`
	RuleList []RuleView   `json:"ruleList"`
}

// DirectionView is what a pod may receive or send: the first rule that matches decides, and Else if none
// does. After a rule with the action Pass, the other rules of ClusterNetworkPolicies of its tier are left out.
type DirectionView struct {
	Rules []RuleView `json:"rules"`
	Else  string     `json:"else"`
}

// PodView is what policies say about a pod of this node.
type PodView struct {
	Pod       model.Name    `json:"pod"`
	Addresses []netip.Addr  `json:"addresses"`
	Policies  []string      `json:"policies"`
	Refused   string        `json:"refused,omitempty"` // why everything is denied whatever the rules say
	Ingress   DirectionView `json:"ingress"`
	Egress    DirectionView `json:"egress"`
}

// Found are the pods and policies that have a name.
type Found struct {
	Pods     []PodView    `json:"pods,omitempty"`
	Policies []PolicyView `json:"policies,omitempty"`
}

// Listing are the policies that select pods of this node.
type Listing struct {
	Policies []PolicySummary `json:"policies"`
	Others   int             `json:"others"` // policies that select none
	Notes    []string        `json:"notes,omitempty"`
}

// notes says why the answers may not be what holds.
func (c *Controller) notes() (list []string) {
	c.answers.Lock()
	defer c.answers.Unlock()
	if waiting := c.waiting(); waiting != "" {
		list = append(list, "What holds may be older than this: the agent waits for "+waiting+".")
	}
	if c.status.Error != "" {
		list = append(list, "What holds may be older than this: changes cannot be written: "+c.status.Error+".")
	}
	if c.Mode == "audit" {
		list = append(list, "Policies are only audited on this node: what they deny goes on, and is counted.")
	}
	return list
}

// selected returns the pods of this node by the policies that select them.
func (c *Controller) selected() map[*model.NetworkPolicy][]model.Name {
	out := map[*model.NetworkPolicy][]model.Name{}
	for _, pod := range c.compiler.Local() {
		list, _ := c.compiler.Selecting(pod)
		for _, p := range list {
			out[p] = append(out[p], pod.Name)
		}
	}
	return out
}

// List returns the policies that select pods of this node.
func (c *Controller) List() Listing {
	c.mu.Lock()
	defer c.mu.Unlock()
	out, selected := Listing{Policies: []PolicySummary{}, Notes: c.notes()}, c.selected()
	for _, p := range c.compiler.Policies() {
		if pods := selected[p]; len(pods) > 0 {
			out.Policies = append(out.Policies, c.summary(p, len(pods)))
		} else {
			out.Others++
		}
	}
	return out
}

func (c *Controller) summary(p *model.NetworkPolicy, pods int) PolicySummary {
	s := PolicySummary{Policy: policy.ObjectName(p.Name, p.Tier), Directions: []string{}, Pods: pods, Problems: p.Problems}
	for direction := range model.Direction(model.Directions) {
		s.Rules += len(p.Rules[direction])
		if p.Isolates[direction] || len(p.Rules[direction]) > 0 {
			s.Directions = append(s.Directions, direction.String())
		}
	}
	if p.Tier == model.TierNetworkPolicy {
		s.Problems = slices.Concat(s.Problems, c.compiler.Tables().Problems[p.Namespace])
	}
	return s
}

func rulesOf(p *model.NetworkPolicy, direction model.Direction) []RuleView {
	out := []RuleView{}
	for i := range p.Rules[direction] {
		r := &p.Rules[direction][i]
		out = append(out, RuleView{
			Policy: policy.ObjectName(p.Name, p.Tier), Direction: direction.String(), Rule: r.Number + 1, Label: r.Label, Action: r.Action.String(),
			Peers: policy.PeerWords(r), Ports: policy.PortWords(r),
		})
	}
	return out
}

// Get returns the pods of this node and the policies that have a name: NAMESPACE/NAME, or the name of a
// ClusterNetworkPolicy, before which its tier may stand. In front of it may be the kind, as List writes it.
func (c *Controller) Get(text string) (Found, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found Found
	for _, pod := range c.compiler.Local() {
		if text == pod.Name.String() || text == "pod "+pod.Name.String() {
			found.Pods = append(found.Pods, c.podView(pod))
		}
	}
	selected := c.selected()
	for _, p := range c.compiler.Policies() {
		full := policy.ObjectName(p.Name, p.Tier)
		_, short, _ := strings.Cut(full, " ")
		if text != full && text != short && (p.Namespace != "" || text != p.Name.Name) {
			continue
		}
		view := PolicyView{PolicySummary: c.summary(p, len(selected[p])), Selects: policy.PodSetWords(&p.Subject), Names: selected[p], RuleList: []RuleView{}}
		for direction := range model.Direction(model.Directions) {
			view.RuleList = append(view.RuleList, rulesOf(p, direction)...)
		}
		found.Policies = append(found.Policies, view)
	}
	if len(found.Pods)+len(found.Policies) == 0 {
		return found, fmt.Errorf("no pod of this node and no policy is called %q: write NAMESPACE/NAME, or the name of a ClusterNetworkPolicy", text)
	}
	return found, nil
}

func (c *Controller) podView(pod *model.PolicyPod) PodView {
	list, known := c.compiler.Selecting(pod)
	view := PodView{Pod: pod.Name, Addresses: pod.Addrs, Policies: []string{}}
	own := false
	for _, p := range list {
		view.Policies = append(view.Policies, policy.ObjectName(p.Name, p.Tier))
		own = own || p.Tier == model.TierNetworkPolicy
	}
	problems := c.compiler.Tables().Problems[pod.Namespace]
	switch {
	case !known:
		view.Refused = fmt.Sprintf("the labels of namespace %s are not known yet, so it is not known which ClusterNetworkPolicies select the pod", pod.Namespace)
	case own && len(problems) > 0:
		view.Refused = problems[0].Message
	}
	view.Ingress, view.Egress = directionView(list, model.Ingress), directionView(list, model.Egress)
	return view
}

func directionView(list []*model.NetworkPolicy, direction model.Direction) DirectionView {
	view, isolatedBy := DirectionView{Rules: []RuleView{}}, ""
	for _, p := range list {
		if p.Tier == model.TierBaseline && isolatedBy != "" {
			break // NetworkPolicies that isolate the pod have decided
		}
		if p.Isolates[direction] && isolatedBy == "" {
			isolatedBy = policy.ObjectName(p.Name, p.Tier)
		}
		view.Rules = append(view.Rules, rulesOf(p, direction)...)
	}
	if view.Else = "accepted: no policy denies it"; isolatedBy != "" {
		view.Else = "denied: " + isolatedBy + " isolates the pod"
	}
	return view
}
