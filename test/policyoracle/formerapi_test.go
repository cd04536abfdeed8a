package policyoracle

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"

	"fairlead.io/fairlead/pkg/source"
)

// The former API has other names for the same, and one kind for each tier.

func actionOf(action string) string {
	if action == "Accept" {
		return "Allow"
	}
	return action
}

func adminPolicy(in *source.ClusterPolicy) *v1alpha1.AdminNetworkPolicy {
	out := &v1alpha1.AdminNetworkPolicy{ObjectMeta: in.ObjectMeta}
	out.Spec.Priority, out.Spec.Subject = in.Spec.Priority, subjectOf(in)
	for i := range in.Spec.Ingress {
		rule := &in.Spec.Ingress[i]
		out.Spec.Ingress = append(out.Spec.Ingress, v1alpha1.AdminNetworkPolicyIngressRule{
			Action: v1alpha1.AdminNetworkPolicyRuleAction(actionOf(rule.Action)), From: fromOf(rule.From), Ports: portsOf(rule.Protocols),
		})
	}
	for i := range in.Spec.Egress {
		rule := &in.Spec.Egress[i]
		out.Spec.Egress = append(out.Spec.Egress, v1alpha1.AdminNetworkPolicyEgressRule{
			Action: v1alpha1.AdminNetworkPolicyRuleAction(actionOf(rule.Action)), To: toOf(rule.To), Ports: portsOf(rule.Protocols),
		})
	}
	return out
}

func baselinePolicy(in *source.ClusterPolicy) *v1alpha1.BaselineAdminNetworkPolicy {
	out := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: in.ObjectMeta}
	out.Spec.Subject = subjectOf(in)
	for i := range in.Spec.Ingress {
		rule := &in.Spec.Ingress[i]
		out.Spec.Ingress = append(out.Spec.Ingress, v1alpha1.BaselineAdminNetworkPolicyIngressRule{
			Action: v1alpha1.BaselineAdminNetworkPolicyRuleAction(actionOf(rule.Action)), From: fromOf(rule.From), Ports: portsOf(rule.Protocols),
		})
	}
	for i := range in.Spec.Egress {
		rule := &in.Spec.Egress[i]
		out.Spec.Egress = append(out.Spec.Egress, v1alpha1.BaselineAdminNetworkPolicyEgressRule{
			Action: v1alpha1.BaselineAdminNetworkPolicyRuleAction(actionOf(rule.Action)), To: baselineTo(rule.To), Ports: portsOf(rule.Protocols),
		})
	}
	return out
}

func subjectOf(in *source.ClusterPolicy) v1alpha1.AdminNetworkPolicySubject {
	return v1alpha1.AdminNetworkPolicySubject{Namespaces: in.Spec.Subject.Namespaces, Pods: podsOf(in.Spec.Subject.Pods)}
}

func podsOf(in *source.ClusterPods) *v1alpha1.NamespacedPod {
	if in == nil {
		return nil
	}
	return &v1alpha1.NamespacedPod{NamespaceSelector: in.NamespaceSelector, PodSelector: *in.PodSelector}
}

func fromOf(in []source.ClusterPeer) []v1alpha1.AdminNetworkPolicyIngressPeer {
	var out []v1alpha1.AdminNetworkPolicyIngressPeer
	for i := range in {
		out = append(out, v1alpha1.AdminNetworkPolicyIngressPeer{Namespaces: in[i].Namespaces, Pods: podsOf(in[i].Pods)})
	}
	return out
}

func networksOf(in *source.ClusterPeer) []v1alpha1.CIDR {
	var out []v1alpha1.CIDR
	for _, network := range in.Networks {
		out = append(out, v1alpha1.CIDR(network))
	}
	return out
}

func toOf(in []source.ClusterPeer) []v1alpha1.AdminNetworkPolicyEgressPeer {
	var out []v1alpha1.AdminNetworkPolicyEgressPeer
	for i := range in {
		out = append(out, v1alpha1.AdminNetworkPolicyEgressPeer{Namespaces: in[i].Namespaces, Pods: podsOf(in[i].Pods), Networks: networksOf(&in[i])})
	}
	return out
}

func baselineTo(in []source.ClusterPeer) []v1alpha1.BaselineAdminNetworkPolicyEgressPeer {
	var out []v1alpha1.BaselineAdminNetworkPolicyEgressPeer
	for i := range in {
		out = append(out, v1alpha1.BaselineAdminNetworkPolicyEgressPeer{Namespaces: in[i].Namespaces, Pods: podsOf(in[i].Pods), Networks: networksOf(&in[i])})
	}
	return out
}

// portsOf translates protocols. One without a port becomes the range of all.
func portsOf(in []source.ClusterProtocol) *[]v1alpha1.AdminNetworkPolicyPort {
	if len(in) == 0 {
		return nil
	}
	out := []v1alpha1.AdminNetworkPolicyPort{}
	for i := range in {
		protocol, match := corev1.ProtocolTCP, in[i].TCP
		if in[i].UDP != nil {
			protocol, match = corev1.ProtocolUDP, in[i].UDP
		} else if in[i].SCTP != nil {
			protocol, match = corev1.ProtocolSCTP, in[i].SCTP
		}
		first, last := int32(0), int32(65535)
		if port := match.DestinationPort; port != nil && port.Range != nil {
			first, last = port.Range.Start, port.Range.End
		} else if port != nil {
			out = append(out, v1alpha1.AdminNetworkPolicyPort{PortNumber: &v1alpha1.Port{Protocol: protocol, Port: port.Number}})
			continue
		}
		out = append(out, v1alpha1.AdminNetworkPolicyPort{PortRange: &v1alpha1.PortRange{Protocol: protocol, Start: first, End: last}})
	}
	return &out
}
