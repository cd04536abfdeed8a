package model

import (
	"net/netip"
	"unique"
)

// Problem is something in an object that had to be ignored. It becomes an event on that object and
// a line in `service list`; the rest of the object still works.
type Problem struct {
	Reason  string `json:"reason"`  // CamelCase, as in an Event
	Message string `json:"message"` // one sentence that says what to do
}

// ObjectProblem is a Problem, and the object that has it.
type ObjectProblem struct {
	Object string `json:"object"`
	Problem
}

// Reasons of problems that are none: they only say what happens, and nobody has to act.
const (
	ClusterIPOnNode       = "ClusterIPOnNode"
	LoadBalancerIPClaimed = "LoadBalancerIPClaimed"
)

// Notice reports whether nothing is wrong.
func (p Problem) Notice() bool {
	return p.Reason == ClusterIPOnNode || p.Reason == LoadBalancerIPClaimed
}

// Service is a Kubernetes Service, reduced to what a proxy needs. ExternalName and headless
// Services have no addresses.
type Service struct {
	Name
	UID             string
	Created         int64 // seconds since 1970
	ClusterIPs      []netip.Addr
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr // ingress addresses with ipMode VIP
	SourceRanges    []netip.Prefix
	Ports           []Port
	Problems        []Problem
	Algorithm       string // the annotation as written; empty for the default
	Direct          string // annotation: how backends on other nodes answer outside clients
	AffinitySeconds uint32 // 0 for none

	HealthCheckNodePort uint16
	InternalLocal       bool // internalTrafficPolicy: Local
	ExternalLocal       bool // externalTrafficPolicy: Local
}

// Port is one port of a Service. NodePort is 0 if it has none.
type Port struct {
	Name           string
	Port, NodePort uint16
	Protocol       Protocol
}

// Slice is an EndpointSlice: endpoints of one family that share their ports.
type Slice struct {
	Name
	Service   string // in the slice's namespace
	Family    Family
	Weight    uint16 // of each of its endpoints; 1 unless annotated
	Ports     []SlicePort
	Endpoints []Endpoint
	Problems  []Problem
	Triggered int64 // when the latest change began, in nanoseconds since 1970; 0 when unknown
}

// SlicePort is a port that the endpoints of a slice listen on.
type SlicePort struct {
	Name     string
	Port     uint16
	Protocol Protocol
}

// Conditions are the conditions of an endpoint, defaults applied.
type Conditions uint8

// The conditions; see the EndpointSlice API for what sets them.
const (
	Ready Conditions = 1 << iota
	Serving
	Terminating
)

// Label is a name that many endpoints share, such as a node or a zone. It takes eight bytes and
// compares as one word.
type Label = unique.Handle[string]

// Endpoint is one address of a slice.
type Endpoint struct {
	Addr       netip.Addr
	Node       Label  // the zero Label when unknown
	Hints      *Hints // nil when there are none
	Conditions Conditions
}

// Hints lists the zones and nodes that should use an endpoint.
type Hints struct {
	Zones, Nodes []string
}

// Node is a node of the cluster.
type Node struct {
	Name     string
	UID      string
	Zone     string
	Addrs    []netip.Addr // internal addresses first, in the order of the object
	PodCIDRs []netip.Prefix
	Labels   map[string]string // only if policies are followed, which select by them
	Leaving  bool              // being deleted, or tainted by the cluster autoscaler for removal
	Awaiting bool              // tainted to keep pods away until its agent is ready
	Network  bool              // its conditions say that pods have a network there
	Egress   uint64            // bits per second for all its pods together; 0 for no limit
	Problems []Problem
}

// Namespace carries what a namespace says about its pods: its labels and fairlead's annotations.
type Namespace struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	SocketLB    SocketLB
	Accelerate  Choice // whether its pods' connections may bypass TCP
	MayUncheck  bool   // its pods may ask to send from foreign addresses
	Egress      uint64 // bits per second for its pods together, on each node; 0 for no limit
	Problems    []Problem
}

// Class is the Kubernetes quality-of-service class of a Pod. It decides whose packets go first
// under congestion.
type Class uint8

// The classes.
const (
	Burstable Class = iota
	Guaranteed
	BestEffort
)

// Choice is the answer to a yes-or-no setting, which may be unset.
type Choice uint8

// The answers.
const (
	Unsaid Choice = iota
	Yes
	No
)

// SocketLB is a setting of a pod or namespace: whether pods' sockets are connected to backends
// directly.
type SocketLB uint8

// The settings.
const (
	SocketLBUnset SocketLB = iota
	SocketLBOn
	SocketLBOff
)

// Pod is a pod of this node.
type Pod struct {
	Name
	UID         string
	LocalUID    string // the UID on this node's kubelet and runtime; differs from UID for static pods
	Created     int64
	Addrs       []netip.Addr
	HostPorts   []HostPort
	HostNetwork bool
	Finished    bool     // its containers have ended for good
	Runtime     string   // set if something special runs it: the name of a RuntimeClass, or KubeVirt
	Mesh        string   // the service mesh that redirects its outgoing connections; empty for none
	SocketLB    SocketLB // its own annotation
	Unchecked   bool     // asks to send from addresses that are not its own
	Proxy       string   // the proxy that it asks to have its connections handed to; empty for none
	Egress      uint64   // bits per second that it may send; 0 for no limit
	Ingress     uint64   // bits per second that it may receive; 0 for no limit
	Class       Class
	BBR         Choice            // whether its connections use BBR congestion control
	Accelerate  Choice            // whether its connections may bypass TCP: its own annotation
	Labels      map[string]string // by which policies select it
	Ports       []NamedPort       // of its containers; policies name them
	Annotations map[string]string // fairlead's annotations only
	Problems    []Problem
}

// Attachment is what the container runtime asked for when it set up one interface of a pod. It is
// known before the pod starts and goes away with it, independently of what the API says about the
// Pod.
type Attachment struct {
	Pod       Name   // the namespace is empty if the runtime named no pod
	UID       string // as the runtime knows it
	Device    string // the node's end of the pair; unique among attachments
	Created   int64
	Addrs     []netip.Addr
	HostPorts []HostPort
	// Lost says that the runtime's request is no longer known. What the Pod says then has to do.
	Lost bool
}

// HostPort is a port of the node that leads to a pod. An invalid HostIP stands for every address of
// the node.
type HostPort struct {
	HostIP        netip.Addr
	Port          uint16
	ContainerPort uint16
	Protocol      Protocol
}
