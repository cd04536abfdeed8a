package twin

import (
	"net/netip"
	"slices"
)

// Policies are judged where a pod's packets pass its device: what it sends as it leaves for its
// destination, after translation; what it gets as the sender's translation left it.

// This part follows docs/design/policies.md. What that leaves open was looked up in the programs: what a row
// notes of the ends of a connection, which step comes first, and when the sender's row says that the receiver
// has accepted a flow too.

// Denied is what packets are counted as that policies do not accept.
const Denied Reason = "policy"

// PolicyRule accepts what one of its peers and its ports match.
type PolicyRule struct {
	Everybody   bool           `json:",omitempty"`
	Pods        []string       `json:",omitempty"` // names of groups of addresses
	Blocks      []netip.Prefix `json:",omitempty"`
	Proto       uint8          `json:",omitempty"` // 0: all, also those without ports
	First, Last uint16         `json:",omitempty"`
}

// Isolation is what is accepted in one direction. All else is denied.
type Isolation struct{ Rules []PolicyRule }

// Subject is a pod whose device asks about policies.
type Subject struct {
	Unknown         bool       `json:",omitempty"` // nothing is known of it yet
	Ingress, Egress *Isolation `json:",omitempty"` // nil: no policy isolates it
	Adopts, Answers bool       `json:",omitempty"` // connections or datagrams may go on that began before

	generation uint32 // another one since something that was accepted no longer is
}

// isOpen reports whether no policy is about a pod.
func (s *Subject) isOpen() bool { return !s.Unknown && s.Ingress == nil && s.Egress == nil }

// opinion is what policies say.
type opinion uint8

const (
	deny opinion = iota
	accept
	acceptPlainly // no rule does: a row, or that nothing isolates the pod
)

// Accepted is what is remembered of a flow that was accepted, under the addresses and ports of what
// the pod sends.
type Accepted struct {
	Generation uint32
	Seen       uint32
	Egress     bool   // the pod began it
	ByNode     bool   // its node did
	Itself     bool   // the pod began it, by a service whose backend it is
	Denied     bool   // it is not accepted any longer
	DeniedAt   uint32 // since when
	Ends       uint8  // who sent what ends a connection
	Owner      int    // whose share it is of
	Next       uint32 // by which generation the pod that gets what this one sends has accepted it too; 0: none
}

// What ends a connection, as noted for what a pod gets; for what it sends, one bit up.
const (
	endFIN uint8 = 1
	endRST uint8 = 4
)

// Policies are the policies of a node, and what they were asked about.
type Policies struct {
	Subjects map[int]*Subject        // by device
	Groups   map[string][]netip.Addr // what the names in rules stand for

	flows, pending map[Flow]*Accepted // of which both ends have sent something, or one
	shares         map[int]int        // how many of `flows` each pod has
}

// sharedRows is how many rows all pods together may have.
const sharedRows = 262144

// answersFor is for how many ticks what comes after a denial may be an answer to what was before.
const answersFor = 10

// NewPolicies returns those of a node without any.
func NewPolicies(groups map[string][]netip.Addr) Policies {
	return Policies{Subjects: map[int]*Subject{}, Groups: groups, flows: map[Flow]*Accepted{}, pending: map[Flow]*Accepted{}, shares: map[int]int{}}
}

// matches reports whether a rule is about a peer and a port.
func (p *Policies) matches(rule *PolicyRule, peer netip.Addr, proto uint8, port uint16) bool {
	if rule.Proto != 0 && (proto != rule.Proto || port < rule.First || port > rule.Last) {
		return false
	}
	return rule.Everybody ||
		slices.ContainsFunc(rule.Pods, func(name string) bool { return slices.Contains(p.Groups[name], peer) }) ||
		slices.ContainsFunc(rule.Blocks, func(block netip.Prefix) bool { return block.Contains(peer) })
}

// ask returns what policies say about one direction of a pod.
func (p *Policies) ask(s *Subject, egress bool, peer netip.Addr, proto uint8, port uint16) opinion {
	in := s.Ingress
	if egress {
		in = s.Egress
	}
	switch {
	case in == nil:
		return acceptPlainly
	case slices.ContainsFunc(in.Rules, func(rule PolicyRule) bool { return p.matches(&rule, peer, proto, port) }):
		return accept
	}
	return deny
}

// insert adds a row to what nothing evicts, if the share of its pod has room: as many as are free.
func (p *Policies) insert(flow Flow, row Accepted) bool {
	all := 0
	for _, rows := range p.shares {
		all += rows
	}
	if p.shares[row.Owner] >= sharedRows-all {
		return false
	}
	if p.flows[flow] == nil {
		p.flows[flow] = &row
		p.shares[row.Owner]++
	}
	return true
}

// remove deletes a row of what nothing evicts.
func (p *Policies) remove(flow Flow) {
	if row := p.flows[flow]; row != nil {
		p.shares[row.Owner]--
		delete(p.flows, flow)
	}
}

// generation returns that of a pod; 0 if policies say nothing about it, or nothing is known.
func (p *Policies) generation(pod int) uint32 {
	if s := p.Subjects[pod]; s != nil && !s.Unknown && !s.isOpen() {
		return s.generation
	}
	return 0
}
