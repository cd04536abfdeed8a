// Package policy compiles NetworkPolicies and ClusterNetworkPolicies to the tables of one node, and
// evaluates packets on them as the programs do. It is pure: objects go in, tables come out, and
// equal objects give equal tables.
//
// A packet is judged in up to four steps, none of which depends on how many policies there are. The
// pod on this node has a subject; 0 is nobody's, and costs nothing. The other address has a class,
// which says what selectors and blocks it is in. The view of the subject's scope, which is its
// namespace, reduces the class to what the policies there tell apart. Subject, direction and that
// reduced class have a decision: runs of ports with a verdict and the rule that gave it.
//
// Views are what keeps tenants apart: however many selectors one namespace has, the decisions of
// another do not become more.
package policy

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/model"
)

// Quota bounds what the NetworkPolicies of one namespace take on a node. Over it, the pods there
// that policies select are denied everything, and nobody else notices.
type Quota struct {
	Selectors int // different selectors, blocks with their exceptions, and named ports
	Terms     int // requirements of those selectors and their values
	Rows      int // subjects times directions times what they tell apart
	Runs      int // runs of ports of all decisions
	Work      int // spans of ports of the rules that go into all decisions
}

// What all namespaces may take together on a node: half of the room that the maps have before they grow, since while a change is
// written the rows before it are there too. Beyond it, those that take most are treated as over their quota.
const (
	nodeRows = 1 << 17
	nodeRuns = 1 << 17
)

// DefaultQuota is far above what policies of people need: at most 6 MB of tables and about a second
// of one core.
func DefaultQuota() Quota {
	return Quota{Selectors: 2048, Terms: 16384, Rows: 1 << 16, Runs: 1 << 18, Work: 1 << 22}
}

// Rule says which rule gave a verdict.
type Rule struct {
	Why       Why
	Policy    model.Name // without a name if no policy did
	Tier      model.Tier
	Direction model.Direction
	Number    int // of the rule in its policy, from 0; -1 if none of its rules matches
	Label     string
	Action    model.Action
}

// Why says what kind of reason a Rule is.
type Why uint8

// The kinds.
const (
	NoPolicy         Why = iota // nothing denies it
	ByRule                      // a rule matches
	Isolated                    // a NetworkPolicy selects the pod and no rule matches
	OverQuota                   // the policies of its namespace are too many
	UnknownNamespace            // it is not known which ClusterNetworkPolicies select the pod
	ToItself                    // a pod may talk to itself
	FromItsNode                 // the node of a pod may talk to it
	UnknownPod                  // it is not known yet what policies say about the pod
	MalformedPacket             // it does not tell which flow it belongs to
)

// Packet is what is judged of a packet that begins a flow: after translation, so that the
// destination is a pod or what lies outside. Port is the destination's; protocols that have none
// are judged as if they were others, by rules without ports.
type Packet struct {
	Src, Dst netip.Addr
	Protocol model.Protocol
	Port     uint16
}

// Verdict is the outcome for a packet.
type Verdict struct {
	Accepted bool
	Rule     Rule
}

// Run is a range of ports, from its key to that of the next run, with one verdict and the number of
// the rule that gives it. A key is the number of a protocol, in the order other, TCP, UDP and SCTP,
// times 65,536, and a port.
type Run struct {
	Key    uint32
	Accept bool
	Rule   uint32
}

// The protocols in keys. That of all that have no ports is the first.
const (
	otherKey = iota << 16
	tcpKey
	udpKey
	sctpKey
	endKey
)

// protocolKey returns the first key of a protocol.
func protocolKey(p model.Protocol) uint32 {
	switch p {
	case model.TCP:
		return tcpKey
	case model.UDP:
		return udpKey
	case model.SCTP:
		return sctpKey
	}
	return otherKey
}

// keyOf returns the key of a packet.
func keyOf(p model.Protocol, port uint16) uint32 {
	if first := protocolKey(p); first != otherKey {
		return first + uint32(port)
	}
	return otherKey
}
