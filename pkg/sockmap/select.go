package sockmap

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// What is selected becomes rows, and a new row comes before an old one goes, so they are at most half of what the map has room for.
const mostRows = 8192

// mostPolicies is how many policies of a namespace are looked at: all of them are, whenever a pod changes.
const mostPolicies = 256

// general is the rule of those who take part by annotation or by the agent's selector: any of them with any other.
const general = 1

// Part is in which rules somebody takes part: a connection may go past TCP if a rule has its client in From, and its server in To, or in
// Ports at the port on which that listens.
type Part struct {
	From, To uint64
	Ports    map[uint16]uint64 // none is zero
}

// Member is a pod that takes part.
type Member struct {
	Pod *model.Pod
	Part
}

// Complaint is what is wrong with a policy.
type Complaint struct {
	Policy *model.Acceleration
	model.Problem
}

// Selection is who takes part.
type Selection struct {
	Pods       []Member // by name
	Node       Part     // of what runs in the node's own network namespace
	Complaints []Complaint
	Policies   [MaxRules]*model.Acceleration // by their bits; the first is nobody's, and others may be free
}

// Select decides who of this node takes part: the pods that an annotation or the extra selector selects, with one another, and the ends
// that a policy lets, the oldest policies first. An extra selector without requirements selects nobody. Pods in the node's network
// namespace cannot be told from the node, and never are; pods that have finished have no connections.
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
			s.complain(policy, tooMany("", fmt.Sprintf("its namespace has %d that are older", mostPolicies)))
			continue
		}
		s.admit(policy)
	}
	return s.selection()
}

// selecting is a Selection in the making.
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
			continue // also where a policy selects it
		}
		m := &member{pod: pod}
		if word == model.Yes {
			m.part = Part{From: general, To: general}
		}
		s.rows++ // one that only a policy selects has a row too then
		s.pods[pod.Namespace] = append(s.pods[pod.Namespace], m)
	}
	return s
}

// admit gives a policy a bit, if there is somebody here at both ends of what it lets.
func (s *selecting) admit(policy *model.Acceleration) {
	from, to := s.told(policy.Namespace, policy.From), s.told(policy.Namespace, policy.To)
	if len(from) == 0 || len(to) == 0 {
		return
	}
	at, found := s.free(policy)
	if !found {
		s.complain(policy, tooMany(" on some nodes", fmt.Sprintf("%d that are older concern pods there", MaxRules-1)))
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
		s.complain(policy, tooMany(" on some nodes", "those that are older have all the ports there that there is room for"))
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

// free returns a bit that no policy has. It is the same whichever others there are, as far as that goes: connections are held to the bits
// that their rules had when they began, so those of a policy that changes its bit go back to TCP.
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

// told returns those whom one of the peers tells, each once.
func (s *selecting) told(namespace string, peers []model.Peer) (list []*Part) {
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

// tooMany says nothing of this node, so that all nodes have one event of it together.
func tooMany(where, why string) model.Problem {
	return model.Problem{
		Reason:  "TooManyAccelerations",
		Message: fmt.Sprintf("the policy is ignored%s: %s: remove some, or let one select what several do", where, why),
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
