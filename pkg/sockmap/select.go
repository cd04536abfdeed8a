package sockmap

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// A selection becomes rows of the map. New rows are written before old ones are deleted, so a
// selection may use at most half of the map.
const mostRows = 8192

// mostPolicies limits the policies of a namespace, because all of them are evaluated whenever a pod
// changes.
const mostPolicies = 256

// general is the rule of pods selected by annotation or by the agent's selector: any of them with
// any other.
const general = 1

// Part is the rules that apply to one end: a connection may bypass TCP if the client's From and the
// server's To, or Ports at the port it listens on, have a rule in common.
type Part struct {
	From, To uint64
	Ports    map[uint16]uint64 // no value is zero
}

// Member is a pod that takes part.
type Member struct {
	Pod *model.Pod
	Part
}

// Complaint is a problem with a policy.
type Complaint struct {
	Policy *model.Acceleration
	model.Problem
}

// Selection is which pods take part, and by which rules.
type Selection struct {
	Pods       []Member // sorted by name
	Node       Part     // what runs in the node's own network namespace
	Complaints []Complaint
	Policies   [MaxRules]*model.Acceleration // by their bits; the first has no policy, and others may be unused
}

// Select decides which pods of this node take part: those selected by an annotation or by the extra
// selector, with each other, and the ends that a policy selects, the oldest policies first. An
// extra selector without requirements selects nothing. Pods in the node's network namespace cannot
// be told from the node and never take part, and neither do pods that have finished.
func Select(pods []*model.Pod, namespaces []*model.Namespace, policies []*model.Acceleration, extra model.Selector) Selection {
	s := newSelecting(pods, namespaces, extra)
	policies = slices.Clone(policies)
	slices.SortFunc(policies, (*model.Acceleration).CompareAge)
	seen := map[string]int{}
	for _, policy := range policies {
		for _, problem := range policy.Problems {
			s.complain(policy, problem)
		}
		seen[policy.Namespace]++
		if seen[policy.Namespace] > mostPolicies {
			s.complain(policy, tooMany("", fmt.Sprintf("its namespace has %d older ones", mostPolicies)))
			continue
		}
		s.admit(policy)
	}
	return s.selection()
}

// selecting is a Selection under construction.
type selecting struct {
	pods       map[string][]*member // by namespace
	node       Part
	policies   [MaxRules]*model.Acceleration
	rows       int
	complaints []Complaint
}

type member struct {
	pod  *model.Pod
	part Part
}

func newSelecting(pods []*model.Pod, namespaces []*model.Namespace, extra model.Selector) *selecting {
	s := &selecting{pods: map[string][]*member{}, rows: 1}
	words := make(map[string]model.Choice, len(namespaces))
	for _, namespace := range namespaces {
		words[namespace.Name] = namespace.Accelerate
	}
	for _, pod := range pods {
		if pod.HostNetwork || pod.Finished {
			continue
		}
		word := pod.Accelerate
		if word == model.Unsaid {
			word = words[pod.Namespace]
		}
		if word == model.Unsaid && len(extra) > 0 && extra.Selects(pod.Labels) {
			word = model.Yes
		}
		if word == model.No {
			continue // even if a policy selects it
		}
		m := &member{pod: pod}
		if word == model.Yes {
			m.part = Part{From: general, To: general}
		}
		s.rows++ // counted even if it turns out that no policy selects the pod
		s.pods[pod.Namespace] = append(s.pods[pod.Namespace], m)
	}
	return s
}

// admit gives a policy a bit, if it selects anything on this node at both ends.
func (s *selecting) admit(policy *model.Acceleration) {
	from, to := s.selectedBy(policy.Namespace, policy.From), s.selectedBy(policy.Namespace, policy.To)
	if len(from) == 0 || len(to) == 0 {
		return
	}
	at, found := s.free(policy)
	if !found {
		s.complain(policy, tooMany(" on some nodes", fmt.Sprintf("%d older ones select pods there", MaxRules-1)))
		return
	}
	rows := 0
	for _, part := range to {
		for _, port := range policy.Ports {
			if part.Ports[port] == 0 {
				rows++
			}
		}
	}
	if s.rows+rows > mostRows {
		s.complain(policy, tooMany(" on some nodes", "older ones use all the ports there is room for"))
		return
	}
	bit := uint64(1) << at
	s.policies[at] = policy
	s.rows += rows
	for _, part := range from {
		part.From |= bit
	}
	for _, part := range to {
		part.accept(policy.Ports, bit)
	}
}

// free returns an unused bit. As far as possible a policy's bit does not depend on other policies:
// connections keep the bits of the rules they began with, so if a policy's bit changes, its
// connections go back to TCP, and are watched again.
func (s *selecting) free(policy *model.Acceleration) (at int, found bool) {
	sum := fnv.New32a()
	fmt.Fprint(sum, policy.UID, policy.Name)
	const bits = MaxRules - 1
	for i := range uint32(bits) {
		at := 1 + int((sum.Sum32()%bits+i)%bits)
		if s.policies[at] == nil {
			return at, true
		}
	}
	return 0, false
}

func (p *Part) accept(ports []uint16, bit uint64) {
	if len(ports) == 0 {
		p.To |= bit
		return
	}
	if p.Ports == nil {
		p.Ports = map[uint16]uint64{}
	}
	for _, port := range ports {
		p.Ports[port] |= bit
	}
}

// selectedBy returns what any of the peers selects, each once.
func (s *selecting) selectedBy(namespace string, peers []model.Peer) (list []*Part) {
	if slices.ContainsFunc(peers, func(p model.Peer) bool { return p.Node }) {
		list = append(list, &s.node)
	}
	for _, m := range s.pods[namespace] {
		if slices.ContainsFunc(peers, func(p model.Peer) bool { return !p.Node && p.Pods.Selects(m.pod.Labels) }) {
			list = append(list, &m.part)
		}
	}
	return list
}

func (s *selecting) complain(policy *model.Acceleration, problem model.Problem) {
	s.complaints = append(s.complaints, Complaint{policy, problem})
}

// tooMany returns a problem. Its message does not name this node, so that the events of all nodes
// are merged into one.
func tooMany(where, why string) model.Problem {
	return model.Problem{
		Reason:  "TooManyAccelerations",
		Message: fmt.Sprintf("the policy is ignored%s: %s: remove some, or merge several into one", where, why),
	}
}

func (s *selecting) selection() Selection {
	out := Selection{Node: s.node, Complaints: s.complaints, Policies: s.policies}
	for _, namespace := range slices.Sorted(maps.Keys(s.pods)) {
		for _, m := range s.pods[namespace] {
			if m.part.From != 0 || m.part.To != 0 || m.part.Ports != nil {
				out.Pods = append(out.Pods, Member{m.pod, m.part})
			}
		}
	}
	slices.SortFunc(out.Pods, func(a, b Member) int { return a.Pod.Name.Compare(b.Pod.Name) })
	return out
}
