package podnet

import (
	"cmp"
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/model"
)

// Ports opens ports of the node for pods.
type Ports interface {
	SetAttachment(*model.Attachment)
	DeleteAttachment(pod model.Name, device string)
	// Await returns once the programs know all that was said about a pod's ports. Its error says
	// why they do not, with code ErrPortTaken if another pod has to release a port first.
	Await(pod model.Name) error
}

// hostPort is a port of the node that a runtime asks for, in canonical form.
type hostPort struct {
	addr     netip.Addr // invalid: every address of the node
	port     int
	protocol string
}

func (p hostPort) String() string {
	addr := "*"
	if p.addr.IsValid() {
		addr = p.addr.String()
	}
	return fmt.Sprintf("%s port %d/%s", addr, p.port, p.protocol)
}

func portOf(m *cni.PortMapping) hostPort {
	addr, _ := netip.ParseAddr(m.HostIP) // validated before
	if addr = addr.Unmap(); addr.IsUnspecified() {
		addr = netip.Addr{}
	}
	return hostPort{addr, m.HostPort, m.Protocol}
}

// protocols translates those of a validated port mapping.
var protocols = map[string]model.Protocol{"tcp": model.TCP, "udp": model.UDP, "sctp": model.SCTP}

// podName returns the name of a record's pod. Without Kubernetes it is the container's id without a
// namespace, which no Pod can have.
func (r *Record) podName() model.Name {
	if r.Pod.Namespace == "" || r.Pod.Name == "" {
		return model.Name{Name: r.Owner.Container}
	}
	return model.Name{Namespace: r.Pod.Namespace, Name: r.Pod.Name}
}

// device returns the name that the record is kept under: that of the node's end, if fairlead made
// the device.
func (r *Record) device() string {
	if r.Owner == (cni.Attachment{}) {
		return r.Device.Name
	}
	return r.Owner.Device()
}

// attachment returns what a validated record says about ports of the node.
func (r *Record) attachment() *model.Attachment {
	a := &model.Attachment{
		Pod: r.podName(), UID: cmp.Or(r.Pod.UID, r.Owner.Container), Device: r.device(), Created: r.Since.Unix(), Addrs: r.Addresses,
		Lost: r.Adopted,
	}
	for i := range r.Device.HostPorts {
		m := &r.Device.HostPorts[i]
		a.HostPorts = append(a.HostPorts, model.HostPort{
			HostIP: portOf(m).addr, Port: uint16(m.HostPort), ContainerPort: uint16(m.ContainerPort), Protocol: protocols[m.Protocol],
		})
	}
	return a
}

// portOpener leads from ports of the node to pods.
type portOpener struct {
	ports Ports        // nil to ignore host ports
	moved []model.Name // pods whose host ports the current request changed
}

// vacant returns an error if a port that a record asks for belongs to another container. The
// interfaces of one container share its ports.
func (p *portOpener) vacant(record *Record, records map[string]*Record) error {
	wanted := make(map[hostPort]bool, len(record.Device.HostPorts))
	for i := range record.Device.HostPorts {
		wanted[portOf(&record.Device.HostPorts[i])] = true
	}
	if len(wanted) == 0 || p.ports == nil {
		return nil
	}
	for _, other := range records {
		if other.Owner.Container == record.Owner.Container {
			continue
		}
		for i := range other.Device.HostPorts {
			if port := portOf(&other.Device.HostPorts[i]); wanted[port] {
				return cni.Refusal(cni.ErrPortTaken, "%s of the node leads to %s, container %.64q", port, other.podName(), other.Owner.Container)
			}
		}
	}
	return nil
}

// open requests that the ports of a record lead to its pod; Await tells when they do. It closes the
// ports of the record before it, if that was of another pod.
func (p *portOpener) open(record, before *Record) {
	if p.ports == nil || record.podName() == (model.Name{}) {
		return
	}
	if before != nil && before.podName() != record.podName() {
		p.closePorts(before)
	}
	p.ports.SetAttachment(record.attachment())
	p.ported(record)
}

func (p *portOpener) closePorts(record *Record) {
	if p.ports == nil || record.podName() == (model.Name{}) {
		return
	}
	p.ports.DeleteAttachment(record.podName(), record.device())
	p.ported(record)
}

// ported notes that a pod's ports have changed.
func (p *portOpener) ported(record *Record) {
	if len(record.Device.HostPorts) > 0 || record.Adopted {
		p.moved = append(p.moved, record.podName())
	}
}

// takeMoved returns the pods whose ports have changed since the last call.
func (p *portOpener) takeMoved() []model.Name {
	moved := p.moved
	p.moved = nil
	return moved
}
