package listwatch

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind is a kind of object that the server serves.
type Kind int

// The kinds that an agent or kube-proxy watches.
const (
	Services Kind = iota
	Slices
	Nodes
	Namespaces
	Pods
	ServiceCIDRs
	NetworkPolicies
	kinds // the number of kinds
)

// object is an API object that can encode itself.
type object interface {
	metav1.Object
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// about describes a kind in the API's terms.
type about struct {
	path    string
	version string
	kind    string
	make    func(f Fleet, number int, s state) object
	empty   func(metav1.ObjectMeta) object
}

func (k Kind) info() about {
	switch k {
	case Services:
		return about{"/api/v1/services", "v1", "Service", Fleet.service,
			func(m metav1.ObjectMeta) object { return &corev1.Service{ObjectMeta: m} }}
	case Slices:
		return about{"/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice", Fleet.slice,
			func(m metav1.ObjectMeta) object { return &discoveryv1.EndpointSlice{ObjectMeta: m} }}
	case Nodes:
		return about{"/api/v1/nodes", "v1", "Node", Fleet.node,
			func(m metav1.ObjectMeta) object { return &corev1.Node{ObjectMeta: m} }}
	case Namespaces:
		return about{"/api/v1/namespaces", "v1", "Namespace", Fleet.namespaceObject,
			func(m metav1.ObjectMeta) object { return &corev1.Namespace{ObjectMeta: m} }}
	case Pods:
		return about{"/api/v1/pods", "v1", "Pod", Fleet.pod,
			func(m metav1.ObjectMeta) object { return &corev1.Pod{ObjectMeta: m} }}
	case ServiceCIDRs:
		return about{"/apis/networking.k8s.io/v1/servicecidrs", "networking.k8s.io/v1", "ServiceCIDR", Fleet.serviceCIDR,
			func(m metav1.ObjectMeta) object { return &networkingv1.ServiceCIDR{ObjectMeta: m} }}
	case NetworkPolicies:
		return about{"/apis/networking.k8s.io/v1/networkpolicies", "networking.k8s.io/v1", "NetworkPolicy", Fleet.policy,
			func(m metav1.ObjectMeta) object { return &networkingv1.NetworkPolicy{ObjectMeta: m} }}
	}
	panic(fmt.Sprintf("no kind %d", int(k)))
}

// String returns the kind's name in the API.
func (k Kind) String() string { return k.info().kind }
