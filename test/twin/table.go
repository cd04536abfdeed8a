package twin

import (
	"net/netip"
	"slices"
)

// Kind is what a frontend is for.
type Kind uint8

// The kinds of frontend.
const (
	ClusterIP Kind = iota
	ExternalIP
	ExternalOnly
	LoadBalancer
	NodePort
	HostPort
)

// Algorithm is how a service chooses among its backends.
type Algorithm uint8

// The algorithms.
const (
	Random Algorithm = iota
	RoundRobin
	SourceHash
	Maglev
)

// Direct is how packets reach a backend on another node that answers its client directly.
type Direct uint8

// The modes.
const (
	DirectOff Direct = iota // backends do not answer directly, the answers come back here
	DirectIPIP
	DirectGeneve
	DirectOpt
)

func (d Direct) String() string { return []string{"off", "ipip", "geneve", "opt"}[d] }

// The scopes of a service.
const (
	ScopeAll = iota
	ScopeLocal
)

// Key is what a client dials.
type Key struct {
	At    netip.AddrPort
	Proto uint8
}

// Frontend leads from a key to a service.
type Frontend struct {
	Service int
	Kind    Kind
}

// Backend is a backend of a service.
type Backend struct {
	At    netip.AddrPort
	Local bool // on this node
}

// Service is one port of a Service.
type Service struct {
	Algorithm     Algorithm
	Affinity      int // seconds
	InternalLocal bool
	ExternalLocal bool
	Ranged        bool
	Direct        Direct   `json:",omitempty"`
	Slots         [2][]int // backends by scope, some more than once
	Broken        Reason   // what happens to packets that need its tables

	turn  uint32
	epoch int
}

// Tables are the node's configuration.
type Tables struct {
	Frontends         map[Key]Frontend
	Closed            map[Key]Frontend // former frontends, to which other nodes may still forward
	Services          map[int]*Service
	Backends          map[int]Backend
	Ranges            map[int][]netip.Prefix
	Inside            []netip.Prefix // the cluster's own addresses
	ClusterIPs        []netip.Prefix // where what is for no service leads nowhere
	Pings             map[netip.Addr]bool
	Hosted            map[netip.AddrPort]int // backends on this node to which other nodes forward, with their service; 0: all services
	Nodes             map[netip.Addr]int     // all addresses of nodes, with their numbers
	TunnelEnds        map[netip.Addr]bool    // by which pods behind the tunnel see this node
	Sources           map[netip.Prefix]int   // the nodes behind which addresses belong
	TunnelPort        uint16                 // of the tunnel between nodes; 0: there is none
	NatDevices        map[int]bool           // devices at which answers get their source rewritten
	Addresses         map[netip.Addr]bool    // of the node; true: clients outside reach NodePorts there
	Masquerade        map[bool]netip.Addr    // keyed by whether it is IPv4
	Routes            map[netip.Addr]Way
	MTU               map[int]int        // of devices
	MACs              map[int]MAC        // of devices
	Pods              map[netip.Addr]int // pods of this node, with their devices
	PodMACs           map[int]MAC        // of the pod's end of its device
	Ports             [2]uint16          // the first and the last that the node may use toward backends
	ExternalClusterIP bool
}

// frontend returns the frontend of a packet. A pod's packet reaches what a pod's socket would: node
// ports at every address of the node, and no external IP that is reserved for clients outside.
func (t *Tables) frontend(flow Flow, ofPod bool) (Frontend, bool) {
	if found, ok := t.Frontends[Key{flow.Dest, flow.Proto}]; ok {
		return found, !ofPod || found.Kind != ExternalOnly
	}
	portsOpen, own := t.Addresses[flow.Dest.Addr()]
	if !own {
		return Frontend{}, false
	}
	found, ok := t.Frontends[Key{netip.AddrPortFrom(anyAddr(flow.Dest.Addr()), flow.Dest.Port()), flow.Proto}]
	if found.Kind == NodePort && !portsOpen && !ofPod {
		return Frontend{}, false
	}
	return found, ok
}

func anyAddr(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// allows reports whether a service's source ranges contain a client.
func (t *Tables) allows(service int, client netip.Addr) bool {
	s := t.Services[service]
	return s == nil || !s.Ranged ||
		slices.ContainsFunc(t.Ranges[service], func(p netip.Prefix) bool { return p.Contains(client) })
}

// scope returns the scope for a packet from outside, or from a pod, for which external addresses
// lead to all backends.
func (s *Service) scope(kind Kind, ofPod bool) int {
	local := s.ExternalLocal && !ofPod
	if kind == ClusterIP {
		local = s.InternalLocal
	}
	if local {
		return ScopeLocal
	}
	return ScopeAll
}
