// Package model holds the agent's nouns: Service, Slice, Node, Namespace and Pod, translated from
// whatever source delivered them, and the Store that keeps the latest version of each. It depends
// on neither the Kubernetes types nor BPF.
//
// Objects are immutable once a Store has them: a change is a new object.
package model

import (
	"cmp"
	"net/netip"
	"strings"
)

// Name is the namespaced name of an object.
type Name struct {
	Namespace, Name string
}

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then by name.
func (n Name) Compare(o Name) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that a Service may have, and AnyProtocol for no particular one.
const (
	AnyProtocol Protocol = 0

	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the conventional name of the protocol, in lower case.
func (p Protocol) String() string {
	switch p {
	case AnyProtocol:
		return "any"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "unknown"
}

// Family is an address family.
type Family uint8

// The address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of addr; an IPv4-mapped address counts as IPv4.
func FamilyOf(addr netip.Addr) Family {
	if addr.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Unspecified returns the wildcard address of the family.
func (f Family) Unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Kind is the kind of an object that wants frontends or that a status is reported about.
type Kind uint8

// The order matters: Services claim frontends before the host ports of Pods do. Acceleration
// policies, ServiceCIDRs and the policies of networks want no frontends.
const (
	KindService Kind = iota
	KindPod
	KindAcceleration
	KindServiceCIDR
	KindNetworkPolicy
	KindClusterNetworkPolicy
)

// Key names one object that wants frontends. It is the unit in which objects become dirty and are
// compiled.
type Key struct {
	Kind Kind
	Name
}

// String returns "namespace/name", prefixed with the kind unless it is a Service.
func (k Key) String() string {
	switch k.Kind {
	case KindPod:
		return "pod:" + k.Name.String()
	case KindAcceleration:
		return "acceleration:" + k.Name.String()
	case KindServiceCIDR:
		return "servicecidr:" + k.Name.Name
	case KindNetworkPolicy:
		return "networkpolicy:" + k.Name.String()
	case KindClusterNetworkPolicy:
		return "clusternetworkpolicy:" + k.Name.Name
	}
	return k.Name.String()
}

// Compare orders keys by kind, then by name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), k.Name.Compare(o.Name))
}
