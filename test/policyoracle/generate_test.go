package policyoracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.io/fairlead/pkg/source"
)

// generator makes states from few names, labels, addresses and ports, so that they often meet.
type generator struct{ *rand.Rand }

func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) namespaceName() string { return pick(g, "n1", "n1", "n1", "n2", "n3") }

func (g *generator) labels() map[string]string {
	out := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if !g.one(4) {
			out[key] = pick(g, "a", "b", "c")
		}
	}
	return out
}

func (g *generator) selector() metav1.LabelSelector {
	out := metav1.LabelSelector{}
	if g.one(3) {
		return out
	}
	if !g.one(3) {
		out.MatchLabels = map[string]string{pick(g, "app", "tier"): pick(g, "a", "b", "c")}
	}
	for range g.IntN(2) {
		expression := metav1.LabelSelectorRequirement{Key: pick(g, "app", "tier"), Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
			metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if expression.Operator == metav1.LabelSelectorOpIn || expression.Operator == metav1.LabelSelectorOpNotIn {
			expression.Values = pick(g, []string{"a"}, []string{"a", "b"}, []string{"c", "b"})
		}
		out.MatchExpressions = append(out.MatchExpressions, expression)
	}
	return out
}

// subject returns a selector that selects more often than not.
func (g *generator) subject() metav1.LabelSelector {
	if g.one(2) {
		return metav1.LabelSelector{}
	}
	return g.selector()
}

// addr returns an address of one family. The last of those that pods may have are followed by some
// that none has.
func (g *generator) addr(four bool, some int) netip.Addr {
	n := byte(1 + g.IntN(some))
	if four {
		return netip.AddrFrom4([4]byte{10, 0, n % 2, n})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0xd, 0xb8, 13: n % 2, 15: n})
}

const addrs = 12

func (g *generator) cidr(four bool) netip.Prefix {
	addr := g.addr(four, addrs)
	prefix, _ := addr.Prefix(max(0, addr.BitLen()-pick(g, 0, 1, 2, 3, 8, 9, 10, 16, 128)))
	return prefix
}

func (g *generator) state() *state {
	s := &state{}
	for _, name := range []string{"n1", "n2", "n3"} {
		s.namespaces = append(s.namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.labels()}})
	}
	for i := range 10 {
		s.pods = append(s.pods, g.pod(i))
	}
	for i := range g.IntN(8) {
		s.policies = append(s.policies, g.policy(i))
	}
	if g.one(2) {
		for i := range g.IntN(4) {
			s.cluster = append(s.cluster, g.clusterPolicy(fmt.Sprintf("c%d", i), "Admin"))
		}
		if g.one(2) { // kube-network-policies has one
			s.cluster = append(s.cluster, g.clusterPolicy("default", "Baseline"))
		}
	}
	return s
}

func (g *generator) pod(i int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespaceName(), Name: fmt.Sprintf("p%d", i), Labels: g.labels()}}
	pod.Spec.NodeName, pod.Spec.HostNetwork = "self", g.one(12)
	pod.Status.Phase = corev1.PodRunning
	n := byte(i + 1)
	if g.one(12) { // another pod has its address by now
		pod.Status.Phase = pick(g, corev1.PodSucceeded, corev1.PodFailed)
		n = byte((i+1)%10 + 1)
	}
	four, six := netip.AddrFrom4([4]byte{10, 0, n % 2, n}), netip.AddrFrom16([16]byte{0x20, 0x01, 0xd, 0xb8, 13: n % 2, 15: n})
	pod.Status.PodIPs = pick(g, []corev1.PodIP{{IP: four.String()}}, []corev1.PodIP{{IP: six.String()}}, []corev1.PodIP{{IP: four.String()}, {IP: six.String()}})
	pod.Spec.Containers = []corev1.Container{{}}
	protocol := pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	for i, name := range []string{"http", "dns"} {
		if !g.one(3) {
			pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{
				Name: name, Protocol: protocol, ContainerPort: int32(80 + i + 2*g.IntN(3)),
			})
		}
	}
	return pod
}

func (g *generator) policy(i int) *networkingv1.NetworkPolicy {
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespaceName(), Name: fmt.Sprintf("np%d", i)}}
	policy.Spec.PodSelector = g.subject()
	policy.Spec.PolicyTypes = pick(g, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
	for range g.IntN(4) {
		ports, peers := g.ports(), g.peers()
		policy.Spec.Ingress = append(policy.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{Ports: ports, From: peers})
	}
	for range g.IntN(4) {
		ports, peers := g.ports(), g.peers()
		policy.Spec.Egress = append(policy.Spec.Egress, networkingv1.NetworkPolicyEgressRule{Ports: ports, To: peers})
	}
	return policy
}

func (g *generator) peers() []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for range g.IntN(3) {
		pods, namespaces := g.selector(), g.selector()
		switch g.IntN(4) {
		case 0:
			out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: &pods})
		case 1:
			out = append(out, networkingv1.NetworkPolicyPeer{NamespaceSelector: &namespaces})
		case 2:
			out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: &pods, NamespaceSelector: &namespaces})
		case 3:
			four := g.one(2)
			cidr := g.cidr(four)
			block := &networkingv1.IPBlock{CIDR: cidr.String()}
			for range g.IntN(4) {
				if except := g.cidr(four); except.Bits() > cidr.Bits() && cidr.Contains(except.Addr()) {
					block.Except = append(block.Except, except.String())
				}
			}
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: block})
		}
	}
	return out
}

func (g *generator) ports() []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for range g.IntN(4) {
		protocol := pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		port := networkingv1.NetworkPolicyPort{Protocol: &protocol}
		first := int32(79 + g.IntN(8))
		number, name := intstr.FromInt32(first), intstr.FromString(pick(g, "http", "dns"))
		switch g.IntN(4) {
		case 0:
			port.Port = &number
		case 1:
			port.Port = &name
		case 2:
			end := pick(g, first, first+1, first+3, 65535)
			port.Port, port.EndPort = &number, &end
		}
		out = append(out, port)
	}
	return out
}

func (g *generator) clusterPolicy(name, tier string) *source.ClusterPolicy {
	policy := &source.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.Tier, policy.Spec.Priority = tier, int32(g.IntN(3))
	namespaces, pods := g.subject(), g.subject()
	if policy.Spec.Subject.Namespaces = &namespaces; g.one(2) {
		policy.Spec.Subject = source.ClusterSubject{Pods: &source.ClusterPods{NamespaceSelector: namespaces, PodSelector: &pods}}
	}
	for range g.IntN(4) {
		policy.Spec.Ingress = append(policy.Spec.Ingress, source.ClusterRule{Action: g.action(tier), From: g.clusterPeers(false), Protocols: g.protocols()})
	}
	for range g.IntN(4) {
		policy.Spec.Egress = append(policy.Spec.Egress, source.ClusterRule{Action: g.action(tier), To: g.clusterPeers(true), Protocols: g.protocols()})
	}
	return policy
}

func (g *generator) action(tier string) string {
	if tier == "Baseline" { // whose former kind does not pass
		return pick(g, "Accept", "Deny")
	}
	return pick(g, "Accept", "Deny", "Pass")
}

func (g *generator) clusterPeers(egress bool) []source.ClusterPeer {
	var out []source.ClusterPeer
	for range 1 + g.IntN(2) {
		namespaces, pods := g.selector(), g.selector()
		switch n := g.IntN(3); {
		case n == 0 && egress:
			peer := source.ClusterPeer{}
			for range 1 + g.IntN(2) {
				peer.Networks = append(peer.Networks, g.cidr(g.one(2)).String())
			}
			out = append(out, peer)
		case n == 1:
			out = append(out, source.ClusterPeer{Namespaces: &namespaces})
		default:
			out = append(out, source.ClusterPeer{Pods: &source.ClusterPods{NamespaceSelector: namespaces, PodSelector: &pods}})
		}
	}
	return out
}

func (g *generator) protocols() []source.ClusterProtocol {
	var out []source.ClusterProtocol
	for range g.IntN(3) {
		first := int32(79 + g.IntN(8))
		match := &source.ClusterPortMatch{DestinationPort: &source.ClusterPort{Range: &source.ClusterRange{Start: 1, End: 65535}}}
		switch g.IntN(3) {
		case 0:
			match.DestinationPort = &source.ClusterPort{Number: first}
		case 1:
			match.DestinationPort = &source.ClusterPort{Range: &source.ClusterRange{Start: first, End: pick(g, first+1, first+3, 65535)}}
		}
		out = append(out, pick(g, source.ClusterProtocol{TCP: match}, source.ClusterProtocol{UDP: match}, source.ClusterProtocol{SCTP: match}))
	}
	return out
}

func (g *generator) probe() probe {
	four := g.one(2)
	p := probe{src: g.addr(four, addrs).String(), dst: g.addr(four, addrs).String()}
	for p.src == p.dst { // what a pod sends to itself is not asked about
		p.dst = g.addr(four, addrs).String()
	}
	if p.protocol = pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, ""); p.protocol != "" {
		p.port = 79 + g.IntN(9)
	}
	return p
}
