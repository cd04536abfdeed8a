package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
)

// Verb is what the plugin asks of the agent.
type Verb string

// The verbs. Each may be repeated.
const (
	Allocate Verb = "allocate" // addresses, before there is a device
	Register Verb = "register" // the device that has them, or that another plugin made
	Release  Verb = "release"
	Check    Verb = "check"
	Collect  Verb = "collect" // what is no longer valid
	Status   Verb = "status"
)

// Codes of errors that the specification has and its library does not name.
const (
	ErrNotAvailable        uint = 50 // no pod can be added
	ErrLimitedConnectivity uint = 51 // and those that there are may lack connections
	ErrNotAsTold           uint = 100
	ErrNoAddress           uint = 101
	ErrPortTaken           uint = 102 // a port of the node is another pod's
)

// Request is a question to the agent. Which fields are read depends on the verb.
type Request struct {
	Verb       Verb       `json:"verb"`
	Attachment Attachment `json:"attachment,omitzero"`
	Pod        Pod        `json:"pod,omitzero"`
	// Addresses that were asked for, of the verb Allocate; that the interface has, of the others.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	WithoutV6 bool         `json:"withoutV6,omitempty"` // the namespace has IPv6 turned off
	Bandwidth *Bandwidth   `json:"bandwidth,omitempty"` // that is asked for, of the verb Allocate
	// Device is what there is, and of the verb Check what the runtime says that it asked for.
	Device *Device `json:"device,omitempty"`
	// Valid is what the runtime still has of the attachment's network.
	Valid []Attachment `json:"valid,omitempty"`
}

// Device is the node's end of a pod's interface, with what the runtime wants of it.
type Device struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	// Chained is true if another plugin made it, and chose its addresses.
	Chained   bool          `json:"chained,omitempty"`
	Kind      Kind          `json:"kind,omitempty"`
	MAC       string        `json:"mac"` // of the node's end
	PodMAC    string        `json:"podMAC"`
	HostPorts []PortMapping `json:"hostPorts,omitempty"`
	Bandwidth *Bandwidth    `json:"bandwidth,omitempty"`
}

// PortMapping is an entry of the capability portMappings: a port of the node that leads to the pod.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// Bandwidth is the capability of that name: bits in a second, and bits at a time.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Answer is what the agent says. With an error there is nothing else in it.
type Answer struct {
	Error     *types.Error `json:"error,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	MTU       int          `json:"mtu,omitempty"`
	Largest   Largest      `json:"largest,omitzero"`
	Pieces    int          `json:"pieces,omitempty"`   // how large packets of TCP are at the most that the pod makes; 0: as above
	Kind      Kind         `json:"kind,omitempty"`     // of the device to be made
	Settings  []Setting    `json:"settings,omitempty"` // of the node's end
	Removed   int          `json:"removed,omitempty"`  // by Collect
}

// Kind is what a pod's device is made as.
type Kind string

// The kinds.
const (
	Veth   Kind = "veth" // or none
	Netkit Kind = "netkit"
)

// IsKind reports whether a device of a kind, as the kernel says it, may be a pod's.
func IsKind(kind string) bool { return Kind(kind) == Veth || Kind(kind) == Netkit }

// Largest is how large packets of TCP may be inside of the node, before they are cut up to what links take; zero is as the kernel
// has it.
type Largest struct {
	V4 int `json:"v4,omitempty"`
	V6 int `json:"v6,omitempty"`
}

// Setting is one of the kernel's for one device: /proc/sys/net/FAMILY/conf/DEVICE/KEY.
type Setting struct {
	Family string `json:"family"` // ipv4 or ipv6
	Key    string `json:"key"`
	Value  string `json:"value"`
}

const (
	mostAddresses = 16
	mostPorts     = 1024
)

// Validate returns what is wrong with a request.
func (r *Request) Validate() error {
	switch r.Verb {
	case Status:
		return nil
	case Collect:
		for i := range r.Valid {
			if err := r.Valid[i].Validate(); err != nil {
				return err
			}
		}
		return short("network name", r.Attachment.Network)
	case Allocate, Register, Release, Check:
	default:
		return fmt.Errorf("unknown verb %.32q", r.Verb)
	}
	if err := errors.Join(r.Attachment.Validate(), r.Pod.Validate()); err != nil {
		return err
	}
	if len(r.Addresses) > mostAddresses {
		return fmt.Errorf("more than %d addresses", mostAddresses)
	}
	for _, addr := range r.Addresses {
		if !addr.IsValid() || addr.Is4In6() || addr.Zone() != "" {
			return fmt.Errorf("address %q of a pod is not a plain one", addr)
		}
	}
	if r.Verb == Register || r.Verb == Check && r.Device != nil {
		return r.Device.validate()
	}
	return nil
}

func (d *Device) validate() error {
	if d == nil || d.Index <= 0 || short("device", d.Name) != nil {
		return errors.New("there is no device to register")
	}
	for _, mac := range []string{d.MAC, d.PodMAC} {
		if parsed, err := net.ParseMAC(mac); err != nil || len(parsed) != 6 {
			return fmt.Errorf("%.32q is not the address of an Ethernet device", mac)
		}
	}
	if len(d.HostPorts) > mostPorts {
		return fmt.Errorf("more than %d ports of the node", mostPorts)
	}
	for i := range d.HostPorts {
		if err := d.HostPorts[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

func (m *PortMapping) validate() error {
	for _, port := range []int{m.HostPort, m.ContainerPort} {
		if port < 1 || port > 65535 {
			return fmt.Errorf("port %d of a port mapping is not from 1 to 65535", port)
		}
	}
	switch m.Protocol {
	case "tcp", "udp", "sctp":
	default:
		return fmt.Errorf("protocol %.16q of a port mapping is not tcp, udp or sctp", m.Protocol)
	}
	if m.HostIP == "" {
		return nil
	}
	if addr, err := netip.ParseAddr(m.HostIP); err != nil || addr.Zone() != "" || addr.IsMulticast() {
		return fmt.Errorf("address %.64q of a port mapping is none that a node can have", m.HostIP)
	}
	return nil
}

// Refusal returns an error in the form that the plugin prints.
func Refusal(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// asRefusal keeps the code of an error that has one.
func asRefusal(err error) *types.Error {
	var refusal *types.Error
	if errors.As(err, &refusal) {
		return refusal
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// asError keeps a nil error nil: the library returns pointers.
func asError(err *types.Error) error {
	if err == nil {
		return nil
	}
	return err
}
