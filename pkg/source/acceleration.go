package source

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fairlead.io/fairlead/pkg/model"
)

// AccelerationGroup is the API group of SocketAccelerations.
func AccelerationGroup() schema.GroupVersion {
	return schema.GroupVersion{Group: "fairlead.io", Version: "v1alpha1"}
}

// SocketAcceleration is a manifest that says which connections may bypass TCP. The chart's
// CustomResourceDefinition, in crds/, describes the same to the API server.
type SocketAcceleration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SocketAccelerationSpec `json:"spec"`
}

// SocketAccelerationSpec is the spec of a SocketAcceleration.
type SocketAccelerationSpec struct {
	From  []AccelerationPeer `json:"from"`
	To    []AccelerationPeer `json:"to"`
	Ports []int32            `json:"ports,omitempty"`
}

// AccelerationPeer is one end of connections: pods, or the node.
type AccelerationPeer struct {
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	Node        bool                  `json:"node,omitempty"`
}

// SocketAccelerationList is a list of SocketAccelerations.
type SocketAccelerationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []SocketAcceleration `json:"items"`
}

// AddAccelerations registers SocketAccelerations with a scheme.
func AddAccelerations(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(AccelerationGroup(), &SocketAcceleration{}, &SocketAccelerationList{})
	metav1.AddToGroupVersion(scheme, AccelerationGroup())
	return nil
}

// DeepCopyObject returns a copy.
func (a *SocketAcceleration) DeepCopyObject() runtime.Object {
	out := a.copied()
	return &out
}

func (a *SocketAcceleration) copied() SocketAcceleration {
	return SocketAcceleration{
		TypeMeta: a.TypeMeta, ObjectMeta: *a.ObjectMeta.DeepCopy(),
		Spec: SocketAccelerationSpec{From: copiedPeers(a.Spec.From), To: copiedPeers(a.Spec.To), Ports: slices.Clone(a.Spec.Ports)},
	}
}

func copiedPeers(in []AccelerationPeer) []AccelerationPeer {
	out := slices.Clone(in)
	for i := range out {
		out[i].PodSelector = out[i].PodSelector.DeepCopy()
	}
	return out
}

// DeepCopyObject returns a copy.
func (l *SocketAccelerationList) DeepCopyObject() runtime.Object {
	out := &SocketAccelerationList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, l.Items[i].copied())
	}
	return out
}

// Limits of a policy. The CustomResourceDefinition has the same.
const (
	maxPeers = 8 // on each side
	maxPorts = 16
)

// Acceleration translates a SocketAcceleration. It leaves out what it cannot use, and this never
// widens the policy: a peer with an invalid selector selects no pods, and if all ports are invalid,
// the policy selects no connections.
func Acceleration(a *SocketAcceleration) *model.Acceleration {
	p := &problems{}
	out := &model.Acceleration{
		Name: model.Name{Namespace: a.Namespace, Name: a.Name}, UID: string(a.UID), Created: created(&a.ObjectMeta),
		From: peers(p, "from", a.Spec.From), To: peers(p, "to", a.Spec.To), Ports: acceptedOn(p, a.Spec.Ports),
	}
	if len(a.Spec.Ports) > 0 && len(out.Ports) == 0 {
		out.To = nil
	}
	isNode := func(p model.Peer) bool { return p.Node }
	if slices.ContainsFunc(out.From, isNode) && slices.ContainsFunc(out.To, isNode) {
		// The author of a policy decides about the pods of one namespace, not about connections
		// between the node and itself.
		p.add("InvalidPeer", "node: true in spec.to is ignored, because it is in spec.from too: write a policy for each")
		out.To = slices.DeleteFunc(out.To, isNode)
	}
	out.Problems = p.all()
	return out
}

func peers(p *problems, side string, in []AccelerationPeer) []model.Peer {
	if len(in) == 0 {
		p.add("NoPeer", "spec.%s is empty, so nothing is accelerated: add a peer with podSelector, or with node: true", side)
	}
	if more := len(in) - maxPeers; more > 0 {
		p.add("TooManyPeers", "spec.%s has %d peers and the last %d are ignored: select with fewer, or write another policy", side, len(in), more)
		in = in[:maxPeers]
	}
	list := make([]model.Peer, 0, len(in))
	for i := range in {
		peer := &in[i]
		switch {
		case peer.Node == (peer.PodSelector != nil):
			p.add("InvalidPeer", "spec.%s[%d] is ignored: give it either podSelector or node: true", side, i)
		case peer.Node:
			list = append(list, model.Peer{Node: true})
		default:
			selector, err := podSelector(peer.PodSelector)
			if err != nil {
				p.add("InvalidSelector", "spec.%s[%d].podSelector is ignored, so it selects no pod: correct it: %.256q", side, i, err)
				continue
			}
			list = append(list, model.Peer{Pods: selector})
		}
	}
	return list
}

func acceptedOn(p *problems, in []int32) []uint16 {
	if more := len(in) - maxPorts; more > 0 {
		p.add("TooManyPorts", "spec.ports has %d ports and the last %d are ignored: write another policy for them", len(in), more)
		in = in[:maxPorts]
	}
	var list []uint16
	for _, port := range in {
		if !isPort(port) {
			p.add("InvalidPort", "port %d of spec.ports is ignored: use 1 to 65535", port)
			continue
		}
		list = append(list, uint16(port))
	}
	slices.Sort(list)
	return slices.Compact(list)
}
