package main

import (
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// tenants is a cluster of namespaces with ten pods each, and a node that runs one pod of every hundredth
// namespace. All policies are in those namespaces, so that each is about a pod of the node.
type tenants struct{ namespaces, policies int }

const (
	podsOfTenant = 10
	podsOfNode   = 100
	podsOfShape  = 5 // that share their labels, as those of a Deployment
	podRange     = "10.0.0.0/8"
	teams, tiers = 50, 3
	// The edited policy is about the server, and lets the client in at a port, or not.
	server, client = 0, 1
	editedPort     = 80
)

func (t tenants) pods() int { return t.namespaces * podsOfTenant }

// local returns a pod of the node.
func (t tenants) local(n int) *model.PolicyPod { return t.pod(n * (t.pods() / podsOfNode)) }

func tenantName(n int) string { return "namespace-" + strconv.Itoa(n) }

// pod returns a pod of the cluster.
func (t tenants) pod(n int) *model.PolicyPod {
	group := n / podsOfShape
	return &model.PolicyPod{
		Name:    model.Name{Namespace: tenantName(n / podsOfTenant), Name: fmt.Sprintf("deployment-%d-5d8f9c7b6d-%05d", group, n)},
		Created: int64(n), Addrs: []netip.Addr{address(10, n+1)},
		Labels: map[string]string{
			"app": fmt.Sprint("app-", group%2), "tier": tier(group), "pod-template-hash": fmt.Sprintf("5d8f9c%05d", group),
		},
		Ports: []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
}

func tier(n int) string { return strconv.Itoa(n % tiers) }

func (t tenants) tierOf(local int) string { return t.local(local).Labels["tier"] }

// deliver gives a store all objects except for the edited policy.
func (t tenants) deliver(store *model.Store) {
	var namespaces []*model.Namespace
	for n := range t.namespaces {
		namespaces = append(namespaces, &model.Namespace{Name: tenantName(n), Labels: map[string]string{"team": strconv.Itoa(n % teams)}})
	}
	var pods []*model.Pod
	for n := range podsOfNode {
		p := t.local(n)
		pods = append(pods, &model.Pod{Name: p.Name, Created: p.Created, Addrs: p.Addrs, Labels: p.Labels, Ports: p.Ports})
	}
	var policies []*model.NetworkPolicy
	for n := range t.policies - 1 {
		policies = append(policies, source.NetworkPolicy(t.policy(n)))
	}
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(namespaces)
	store.ReplacePods(pods)
	store.ReplaceNetworkPolicies(policies)
	store.ReplaceClusterNetworkPolicies(nil)
}

// policy returns one of those that nobody edits: it lets in some pods of its own namespace and of some
// others, and out to a block and to pods with a named port.
func (t tenants) policy(n int) *networkingv1.NetworkPolicy {
	except := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n % 3), byte(n%7 + 200), 0}), 24).String()
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.local(n % podsOfNode).Namespace, Name: fmt.Sprint("policy-", n)},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{PodSelector: labeled("app", fmt.Sprint("app-", n%2))}}},
				{
					From:  []networkingv1.NetworkPolicyPeer{{NamespaceSelector: labeled("team", strconv.Itoa(n%teams)), PodSelector: labeled("tier", tier(n))}},
					Ports: []networkingv1.NetworkPolicyPort{ports(corev1.ProtocolTCP, 8000+n%10, 8080+n%10)},
				},
			},
			Egress: []networkingv1.NetworkPolicyEgressRule{
				{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: podRange, Except: []string{except}}}}},
				{
					To:    []networkingv1.NetworkPolicyPeer{{PodSelector: labeled("app", "app-1")}},
					Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromString("http"))}},
				},
			},
		},
	}
}

// edited returns the policy that is edited: it lets pods of a tier in at a port, wherever they are.
func (t tenants) edited(tier string, port int) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.local(server).Namespace, Name: "edited"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: labeled("tier", tier)}},
				Ports: []networkingv1.NetworkPolicyPort{ports(corev1.ProtocolUDP, port, port)},
			}},
		},
	}
}

func labeled(label, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{label: value}}
}

func ports(protocol corev1.Protocol, first, last int) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: new(intstr.FromInt(first)), EndPort: new(int32(last))}
}
