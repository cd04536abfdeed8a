package model

import (
	"net/netip"
	"unique"
)

// Problem is something in an object that had to be ignored. It becomes an event on that object and a line in
// `service list`; the rest of the object works.
type Problem struct {
	Reason  string // CamelCase, as in an Event
	Message string // one sentence that says what to do
}

// Service is a Kubernetes Service as far as a proxy cares. ExternalName and headless Services have no addresses.
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
	Direct          string // likewise, how backends on other nodes answer clients outside
	AffinitySeconds uint32 // 0 for none

	HealthCheckNodePort uint16
	InternalLocal       bool // internalTrafficPolicy: Local
	ExternalLocal       bool // externalTrafficPolicy: Local
}

// Port is one port of a Service. NodePort is 0 where there is none.
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
	Triggered int64 // when what last changed it began, in nanoseconds since 1970; 0 when unknown
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

// Label is a name that many endpoints share (a node, a zone): eight bytes, compared as one word.
type Label = unique.Handle[string]

// Endpoint is one address of a slice.
type Endpoint struct {
	Addr       netip.Addr
	Node       Label  // the zero Label when unknown
	Hints      *Hints // nil when there are none
	Conditions Conditions
}

// Hints say which nodes and zones should use an endpoint.
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
	Leaving  bool   // being deleted, or tainted so by the cluster autoscaler
	Awaiting bool   // tainted so that pods wait until its agent is ready
	Network  bool   // its conditions say that pods have a network there
	Egress   uint64 // bits a second that all its pods may send together; 0 for as many as they can
	Problems []Problem
}

// Namespace carries what a namespace says about its pods: its labels, and the annotations that are ours.
type Namespace struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	SocketLB    SocketLB
	Accelerate  Choice // whether its pods' connections may go past TCP
	MayUncheck  bool   // its pods may ask for it
	Egress      uint64 // bits a second that its pods may send together, from each node; 0 for as many as they can
	Problems    []Problem
}

// Class is what a Pod has of Kubernetes' quality of service: whose packets go first where not all can go at once.
type Class uint8

// The classes.
const (
	Burstable Class = iota
	Guaranteed
	BestEffort
)

// Choice is what somebody says to a question, or does not.
type Choice uint8

// The answers.
const (
	Unsaid Choice = iota
	Yes
	No
)

// SocketLB is what somebody asks for: whether the sockets of pods are pointed at backends.
type SocketLB uint8

// What may be asked for.
const (
	SocketLBUnset SocketLB = iota
	SocketLBOn
	SocketLBOff
)

// Pod is a pod of this node.
type Pod struct {
	Name
	UID         string
	LocalUID    string // the UID that this node's kubelet and runtime have for it: another one for static pods
	Created     int64
	Addrs       []netip.Addr
	HostPorts   []HostPort
	HostNetwork bool
	Finished    bool     // its containers have ended for good
	Runtime     string   // what runs it, if that is not the ordinary: the name of a RuntimeClass, or KubeVirt
	Mesh        string   // the service mesh that redirects what it dials; empty for none
	SocketLB    SocketLB // its own annotation
	Unchecked   bool     // asks to send what has another's address
	Proxy       string   // to whom it asks to have its connections handed; empty for nobody
	Egress      uint64   // bits a second that it may send; 0 for as many as it can
	Ingress     uint64   // likewise that it may get
	Class       Class
	BBR         Choice            // whether its connections are to have that congestion control
	Accelerate  Choice            // whether they may go past TCP: its own annotation
	Labels      map[string]string // by which others select it
	Annotations map[string]string // ours
	Problems    []Problem
}

// Attachment is what the container runtime asked for a pod's interface when it made the pod: known before the pod starts, and gone
// with it, whatever is heard of the Pod meanwhile.
type Attachment struct {
	Pod       Name   // without a namespace where the runtime named no pod
	UID       string // as the runtime has it
	Device    string // the node's end, which no other attachment has
	Created   int64
	Addrs     []netip.Addr
	HostPorts []HostPort
	// Lost says that what the runtime asked for is not known any more: then what the Pod says has to do.
	Lost bool
}

// HostPort is a port of the node that leads to a pod. HostIP is invalid for every address of the node.
type HostPort struct {
	HostIP        netip.Addr
	Port          uint16
	ContainerPort uint16
	Protocol      Protocol
}
