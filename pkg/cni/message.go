package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
)

// Verb is what the plugin asks the agent to do.
type Verb string

// The verbs. All are idempotent.
const (
	Allocate Verb = "allocate" // reserve addresses, before the device exists
	Register Verb = "register" // record the device, made by fairlead-cni or another plugin
	Release  Verb = "release"
	Check    Verb = "check"
	Collect  Verb = "collect" // release all attachments but the valid ones
	Status   Verb = "status"
)

// Error codes that the CNI library does not name. 50 and 51 are in the CNI specification, those
// from 100 on are our own.
const (
	ErrNotAvailable        uint = 50 // no pod can be added
	ErrLimitedConnectivity uint = 51 // likewise, and existing pods may lack connectivity
	ErrMismatch            uint = 100
	ErrNoAddress           uint = 101
	ErrPortTaken           uint = 102 // another pod has a port of the node
)

// Request is a request to the agent. The verb determines which fields are read.
type Request struct {
	Verb       Verb       `json:"verb"`
	Attachment Attachment `json:"attachment,omitzero"`
	Pod        Pod        `json:"pod,omitzero"`
	// Addresses are those that the runtime wants (Allocate), or that the interface has.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	WithoutV6 bool         `json:"withoutV6,omitempty"` // the namespace has IPv6 turned off
	Bandwidth *Bandwidth   `json:"bandwidth,omitempty"` // that the runtime wants, for Allocate
	// Device is the device that exists. For Check it repeats what the runtime wanted of it.
	Device *Device `json:"device,omitempty"`
	// Valid lists the attachments of the network that the runtime still has.
	Valid []Attachment `json:"valid,omitempty"`
}

// Device is the node's end of a pod's interface, with what the runtime wants of it.
type Device struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	// Chained is set if another plugin made the device and chose its addresses.
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

// Bandwidth is the capability bandwidth: rates in bits per second, and bursts in bits.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Answer is the agent's answer. If Error is set, all else is empty.
type Answer struct {
	Error     *types.Error `json:"error,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	MTU       int          `json:"mtu,omitempty"`
	Largest   Largest      `json:"largest,omitzero"`
	Pieces    int          `json:"pieces,omitempty"`   // largest TCP packet that the pod sends; 0: as Largest
	Kind      Kind         `json:"kind,omitempty"`     // of the device to make
	Settings  []Setting    `json:"settings,omitempty"` // of the node's end
	Removed   int          `json:"removed,omitempty"`  // attachments that Collect released
	// SetsUp says that the agent sets the node's end up when it is registered, after programs check
	// what the pod sends. An older agent leaves that to the plugin.
	SetsUp bool `json:"setsUp,omitempty"`
}

// Kind is the link type of a pod's device.
type Kind string

// The kinds.
const (
	Veth   Kind = "veth" // also meant by ""
	Netkit Kind = "netkit"
)

// IsKind reports whether a pod's device may have this link type of the kernel.
func IsKind(kind string) bool { return Kind(kind) == Veth || Kind(kind) == Netkit }

// Largest is the largest TCP packets within the node, before they are segmented for a link. Zero is
// the kernel's default.
type Largest struct {
	V4 int `json:"v4,omitempty"`
	V6 int `json:"v6,omitempty"`
}

// Setting is a sysctl of one device: /proc/sys/net/FAMILY/conf/DEVICE/KEY.
type Setting struct {
	Family string `json:"family"` // ipv4 or ipv6
	Key    string `json:"key"`
	Value  string `json:"value"`
}

const (
	mostAddresses = 16
	mostPorts     = 1024
)

// Validate checks a request.
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
			return fmt.Errorf("pod address %q is invalid, IPv4-mapped or has a zone", addr)
		}
	}
	if r.Verb == Register || r.Verb == Check && r.Device != nil {
		return r.Device.validate()
	}
	return nil
}

func (d *Device) validate() error {
	if d == nil || d.Index <= 0 || short("device", d.Name) != nil {
		return errors.New("the request has no valid device")
	}
	for _, mac := range []string{d.MAC, d.PodMAC} {
		if parsed, err := net.ParseMAC(mac); err != nil || len(parsed) != 6 {
			return fmt.Errorf("%.32q is not an Ethernet address", mac)
		}
	}
	if len(d.HostPorts) > mostPorts {
		return fmt.Errorf("more than %d host ports", mostPorts)
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
		return fmt.Errorf("address %.64q of a port mapping is not one that a node can have", m.HostIP)
	}
	return nil
}

// Refusal returns an error in the form that the plugin prints.
func Refusal(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// asRefusal returns an error with its CNI code, or with ErrInternal if it has none.
func asRefusal(err error) *types.Error {
	var refusal *types.Error
	if errors.As(err, &refusal) {
		return refusal
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// asError turns a nil *types.Error, as the library returns it, into a nil error.
func asError(err *types.Error) error {
	if err == nil {
		return nil
	}
	return err
}
