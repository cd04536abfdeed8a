package listwatch

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Fleet gives the size of the cluster. Objects are functions of their number and of how often they
// changed, so none of them is stored.
type Fleet struct {
	Services   int
	Endpoints  int // of each Service; each is a pod
	Nodes      int
	Namespaces int
	FirstPod   int // the first pod's address is 10.0.0.0 plus this
	NodePort   int // of the first Service; Services then have UDP ports too; zero = cluster IPs only
	Policies   int // NetworkPolicies, of one namespace after another
}

// tiers is how many values the label tier of pods has.
const tiers = 3

// The limits of the fleet's address ranges. A slice holds a hundred endpoints, the default of
// upstream.
const (
	maxServices  = 1 << 20
	maxEndpoints = 100
	maxPods      = 1 << 24
	maxNodes     = 1 << 16

	firstNodePort, lastNodePort = 30000, 32767 // the default range
)

func (f Fleet) check() error {
	switch {
	case f.Services < 0 || f.Services > maxServices:
		return fmt.Errorf("%d services are not between 0 and %d", f.Services, maxServices)
	case f.Endpoints < 1 || f.Endpoints > maxEndpoints:
		return fmt.Errorf("%d endpoints of a service are not between 1 and %d", f.Endpoints, maxEndpoints)
	case f.FirstPod < 0 || f.FirstPod+f.Services*f.Endpoints > maxPods:
		return fmt.Errorf("%d pods from number %d on do not fit into %d", f.Services*f.Endpoints, f.FirstPod, maxPods)
	case f.Nodes < 1 || f.Nodes > maxNodes:
		return fmt.Errorf("%d nodes are not between 1 and %d", f.Nodes, maxNodes)
	case f.Namespaces < 1:
		return fmt.Errorf("%d namespaces are too few", f.Namespaces)
	case f.NodePort != 0 && (f.NodePort < firstNodePort || f.NodePort+f.Services > lastNodePort+1):
		return fmt.Errorf("%d node ports from %d on are not between %d and %d", f.Services, f.NodePort, firstNodePort, lastNodePort)
	}
	return nil
}

// ServiceName returns the namespace and name of a Service.
func (f Fleet) ServiceName(number int) (namespace, name string) {
	return f.namespace(number), fmt.Sprintf("service-%06d", number)
}

// NodeName returns the name of a Node.
func (f Fleet) NodeName(number int) string { return "node-" + strconv.Itoa(number) }

// nodeNumber returns the number of a Node, or a number that no Node has.
func (f Fleet) nodeNumber(name string) int {
	number, err := strconv.Atoi(strings.TrimPrefix(name, "node-"))
	if err != nil || f.NodeName(number) != name {
		return -1
	}
	return number
}

func (f Fleet) namespace(service int) string {
	return "namespace-" + strconv.Itoa(service%f.Namespaces)
}

// podName returns the name of a pod. The number of a pod is its Service's number times the
// endpoints of each, plus its index.
func (f Fleet) podName(number int) string {
	return fmt.Sprintf("service-%06d-5d8f7c9b6-%02d", number/f.Endpoints, number%f.Endpoints)
}

// PodIdentity returns the namespace, name and UID of a pod.
func (f Fleet) PodIdentity(number int) (namespace, name, uid string) {
	return f.namespace(number / f.Endpoints), f.podName(number), string(clutter(Pods, number, state{}).UID)
}

// podNode returns the number of the node that a pod runs on.
func (f Fleet) podNode(number int) int { return number % f.Nodes }

// NodeAddr returns the address of a Node.
func (f Fleet) NodeAddr(number int) netip.Addr { return netip.MustParseAddr(addr(192, 168, number)) }

// PodAddr returns the address of a pod.
func (f Fleet) PodAddr(number int) netip.Addr {
	return netip.MustParseAddr(addr(10, 0, f.FirstPod+number))
}

// ServiceAddr returns the cluster IP of a Service.
func (f Fleet) ServiceAddr(number int) netip.Addr { return netip.MustParseAddr(addr(172, 16, number)) }

// addr returns an address of a range that begins with the given bytes.
func addr(first, second byte, number int) string {
	return netip.AddrFrom4([4]byte{first, second + byte(number>>16), byte(number >> 8), byte(number)}).String()
}

// clutter returns the metadata that an API server and its clients leave on an object. Most of it
// means nothing to a proxy, and makes up most of what an agent has to read and discard.
func clutter(k Kind, number int, s state) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		ResourceVersion: strconv.FormatUint(s.revision, 10),
		Generation:      int64(s.generation) + 1,
		// An object that is deleted and created again gets another UID.
		UID:               types.UID(fmt.Sprintf("6a1d2f4e-%04x-4000-8000-%012x", int(k), number)),
		CreationTimestamp: metav1.Unix(1_700_000_000+int64(number), 0),
		Labels:            map[string]string{"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/part-of": "bench"},
		Annotations: map[string]string{
			"bench.fairlead.io/generation":                     strconv.Itoa(int(s.generation)),
			"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf("%01000d", number),
		},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kubectl", Operation: "Apply", APIVersion: k.info().version, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:spec":{"f:x%0500d":{}}}`, number)),
		}},
	}
}

// service makes a Service. Every change changes its port.
func (f Fleet) service(number int, s state) object {
	o := &corev1.Service{ObjectMeta: clutter(Services, number, s)}
	o.Namespace, o.Name = f.ServiceName(number)
	cluster := f.ServiceAddr(number).String()
	o.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: cluster, ClusterIPs: []string{cluster},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports:      []corev1.ServicePort{{Name: "http", Port: 80 + int32(s.generation%1000), Protocol: corev1.ProtocolTCP}},
		Selector:   map[string]string{"app.kubernetes.io/name": o.Name},
	}
	if f.NodePort != 0 {
		o.Spec.Type = corev1.ServiceTypeNodePort
		o.Spec.Ports[0].NodePort = int32(f.NodePort + number)
		datagrams := o.Spec.Ports[0]
		datagrams.Name, datagrams.Protocol = "datagrams", corev1.ProtocolUDP
		o.Spec.Ports = append(o.Spec.Ports, datagrams)
	}
	return o
}

// slice makes the EndpointSlice of a Service. Every odd change makes its last endpoint unready,
// every even one ready again.
func (f Fleet) slice(number int, s state) object {
	o := &discoveryv1.EndpointSlice{ObjectMeta: clutter(Slices, number, s), AddressType: discoveryv1.AddressTypeIPv4}
	var service string
	o.Namespace, service = f.ServiceName(number)
	o.Name = service + "-x7k2p"
	o.Labels[discoveryv1.LabelServiceName] = service
	name, port, protocol := "http", int32(8080), corev1.ProtocolTCP
	o.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}
	if f.NodePort != 0 {
		name, protocol := "datagrams", corev1.ProtocolUDP
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
	}
	o.Endpoints = make([]discoveryv1.Endpoint, f.Endpoints)
	for i := range o.Endpoints {
		pod := number*f.Endpoints + i
		node := f.NodeName(f.podNode(pod))
		ready := i < f.Endpoints-1 || s.generation%2 == 0
		terminating := !ready
		o.Endpoints[i] = discoveryv1.Endpoint{
			Addresses: []string{f.PodAddr(pod).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: &terminating},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: o.Namespace, Name: f.podName(pod)},
		}
	}
	return o
}

func (f Fleet) pod(number int, s state) object {
	o := &corev1.Pod{ObjectMeta: clutter(Pods, number, s)}
	o.Namespace, o.Name = f.namespace(number/f.Endpoints), f.podName(number)
	service := number / f.Endpoints
	o.Labels["app.kubernetes.io/name"], o.Labels["tier"] = fmt.Sprintf("service-%06d", service), strconv.Itoa(service%tiers)
	node := f.podNode(number)
	o.Spec = corev1.PodSpec{
		NodeName:   f.NodeName(node),
		Containers: []corev1.Container{{Name: "main", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}},
	}
	own := f.PodAddr(number).String()
	o.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: addr(192, 168, node), PodIP: own, PodIPs: []corev1.PodIP{{IP: own}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	return o
}

// policy makes a NetworkPolicy for all pods of a namespace. It accepts pods of all namespaces, those of one tier.
func (f Fleet) policy(number int, s state) object {
	o := &networkingv1.NetworkPolicy{ObjectMeta: clutter(NetworkPolicies, number, s)}
	o.Namespace, o.Name = f.namespace(number), fmt.Sprintf("policy-%06d", number)
	o.Spec = networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": strconv.Itoa(number % tiers)}},
		}}}},
	}
	return o
}

func (f Fleet) node(number int, s state) object {
	o := &corev1.Node{ObjectMeta: clutter(Nodes, number, s)}
	o.Name = f.NodeName(number)
	o.Labels[corev1.LabelHostname] = o.Name
	o.Labels[corev1.LabelTopologyZone] = "zone-" + strconv.Itoa(number%3)
	o.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: f.NodeAddr(number).String()}, {Type: corev1.NodeHostName, Address: o.Name},
	}
	o.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return o
}

func (f Fleet) namespaceObject(number int, s state) object {
	o := &corev1.Namespace{ObjectMeta: clutter(Namespaces, number, s)}
	o.Name = f.namespace(number)
	o.Labels[corev1.LabelMetadataName] = o.Name
	o.Status.Phase = corev1.NamespaceActive
	return o
}

// serviceCIDR makes the single range of cluster IPs.
func (f Fleet) serviceCIDR(number int, s state) object {
	o := &networkingv1.ServiceCIDR{ObjectMeta: clutter(ServiceCIDRs, number, s)}
	o.Name, o.Spec.CIDRs = "kubernetes", []string{"172.16.0.0/12"}
	return o
}
