package model

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Tier is a group of policies. Tiers decide one after the other, in this order.
type Tier uint8

// The tiers. NetworkPolicies are between the two of ClusterNetworkPolicies.
const (
	TierAdmin Tier = iota
	TierNetworkPolicy
	TierBaseline
)

// Action is what a rule does with the traffic that it matches.
type Action uint8

// The actions. Pass leaves the decision to the next tier.
const (
	Accept Action = iota
	Deny
	Pass
)

// String returns the action as the API writes it.
func (a Action) String() string {
	switch a {
	case Accept:
		return "Accept"
	case Deny:
		return "Deny"
	case Pass:
		return "Pass"
	}
	return "unknown"
}

// Direction is the direction of traffic as its subject sees it.
type Direction uint8

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// Directions is the number of directions.
const Directions = 2

// String returns the direction in lower case.
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// NetworkPolicy is a NetworkPolicy, or a ClusterNetworkPolicy, which has no namespace.
type NetworkPolicy struct {
	Name
	UID      string
	Tier     Tier
	Priority int32 // within the tier; the lowest first
	Subject  PodSet
	Rules    [Directions][]PolicyRule
	// Isolates says in which directions a NetworkPolicy denies what no rule accepts.
	Isolates [Directions]bool
	Problems []Problem
}

// Key names the policy's object.
func (p *NetworkPolicy) Key() Key {
	if p.Namespace == "" {
		return Key{KindClusterNetworkPolicy, p.Name}
	}
	return Key{KindNetworkPolicy, p.Name}
}

// Compare orders policies as they decide. The API leaves open which of two of the same priority is
// first; the order by name is the same on every node.
func (p *NetworkPolicy) Compare(o *NetworkPolicy) int {
	return cmp.Or(cmp.Compare(p.Tier, o.Tier), cmp.Compare(p.Priority, o.Priority), p.Name.Compare(o.Name))
}

// PolicyRule is one rule of a policy. It matches traffic that one of the Peers and one of the Ports
// match.
type PolicyRule struct {
	Number  int    // position in the object, from 0
	Label   string // the name that its author gave it
	Action  Action
	AnyPeer bool // Peers does not matter
	AnyPort bool // neither do Ports and the protocol
	Peers   []PolicyPeer
	Ports   []PortSpan  // sorted, without overlaps
	Named   []NamedPort // of what the packet is sent to; their numbers are 0
}

// PolicyPeer is a set of peers. Exactly one of its fields is set.
type PolicyPeer struct {
	Pods  *PodSet
	Block *Block
	Nodes *Selector
}

// PodSet is a set of pods: those that a selector picks in one namespace, or in the namespaces that
// another selector picks. Pods in the host's network are in none.
type PodSet struct {
	Namespace  string // empty if Namespaces says which
	Namespaces Selector
	Pods       Selector
}

// Block is a range of addresses without some parts of it.
type Block struct {
	Prefix netip.Prefix
	Except []netip.Prefix // within Prefix
}

// Contains reports whether an address is in the block.
func (b *Block) Contains(addr netip.Addr) bool {
	if !b.Prefix.Contains(addr) {
		return false
	}
	for _, except := range b.Except {
		if except.Contains(addr) {
			return false
		}
	}
	return true
}

// PortSpan is a range of ports of one protocol. First and Last are in it.
type PortSpan struct {
	Protocol    Protocol
	First, Last uint16
}

// NamedPort is a port of a container that has a name. AnyProtocol stands for all protocols.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// PolicyPod is a pod of the cluster as policies see it.
type PolicyPod struct {
	Name
	Created int64
	Addrs   []netip.Addr // at most one of each family; none if it has ended or is in the host's network
	Labels  map[string]string
	Ports   []NamedPort
	// HostNetwork says that it has the addresses of its node, so that policies take it for the node.
	HostNetwork bool
}

// Share has a pod keep what another one has already, where both are equal. Nobody changes either.
func (p *PolicyPod) Share(other *PolicyPod) {
	if p.Namespace == other.Namespace {
		p.Namespace = other.Namespace // the same bytes
	}
	if maps.Equal(p.Labels, other.Labels) {
		p.Labels = other.Labels
	}
	if slices.Equal(p.Ports, other.Ports) {
		p.Ports = other.Ports
	}
}

// PolicyNode is a node of the cluster as policies see it.
type PolicyNode struct {
	Name   string
	Labels map[string]string
	Addrs  []netip.Addr
}
