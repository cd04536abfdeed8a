package policyoracle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/pkg/source"
)

// no is the verdict of cyclonus where it cannot be asked.
const no = -1

// TestDifferences has what the others judge differently. The text of the API, quoted, decides.
func TestDifferences(t *testing.T) {
	tests := []struct {
		name, api              string
		policy                 networkingv1.NetworkPolicySpec
		cluster                []source.ClusterPolicySpec
		want                   bool
		kubeNetpol, byCyclonus int
	}{
		{
			name: "NotIn of a label that the peer lacks",
			api:  "labels.Requirement: NotIn also matches if the object does not have the key",
			policy: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{"Ingress"},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "missing", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a"}}},
				}}}}},
			},
			want: true, kubeNetpol: 1, byCyclonus: 0,
		},
		{
			name: "empty value of a label that the peer lacks",
			api:  "matchLabels is equivalent to an element of matchExpressions with the operator In, which needs the key",
			policy: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{"Ingress"},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
					PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"missing": ""}},
				}}}},
			},
			want: false, kubeNetpol: 0, byCyclonus: 1,
		},
		{
			name: "list of rules that is empty but there",
			api:  "ingress: if this field is empty then this NetworkPolicy does not allow any traffic",
			policy: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{"Ingress"}, Ingress: []networkingv1.NetworkPolicyIngressRule{},
			},
			want: false, kubeNetpol: 1, byCyclonus: 0,
		},
		{
			// The comment on the field tier speaks of pods: "further evaluation only happens for Pods not
			// selected by a v1.NetworkPolicy". It gives as the reason that NetworkPolicy "always makes a final
			// decision for selected pods", which it does in the directions that it isolates; the guide of the
			// same version says of Baseline rules that they are left out "if a pod is selected by a
			// NetworkPolicy with egress rules" for egress, and "the same applies for ingress".
			name: "Baseline tier of a pod that NetworkPolicies select for the other direction",
			api:  "a pod that policies select for ingress only is not isolated for egress, so they decide nothing there",
			policy: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{"Ingress"}, Ingress: []networkingv1.NetworkPolicyIngressRule{{}},
			},
			cluster: []source.ClusterPolicySpec{{
				Tier: "Baseline", Subject: source.ClusterSubject{Namespaces: &metav1.LabelSelector{}},
				Egress: []source.ClusterRule{{Action: "Deny", To: []source.ClusterPeer{{Networks: []string{"0.0.0.0/0"}}}}},
			}},
			want: false, kubeNetpol: 1, byCyclonus: no,
		},
	}
	theirs := newKubeNetpol(t)
	for _, tt := range tests {
		s := &state{namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}, policies: []*networkingv1.NetworkPolicy{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "np"}, Spec: tt.policy},
		}}
		for name, addr := range map[string]string{"from": "10.0.0.1", "to": "10.0.0.2"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr}}}}
			pod.Spec.Containers = []corev1.Container{{}}
			s.pods = append(s.pods, pod)
		}
		for _, spec := range tt.cluster {
			s.cluster = append(s.cluster, &source.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: spec})
		}
		p := probe{"10.0.0.1", "10.0.0.2", corev1.ProtocolTCP, 80}
		if verdict := newOurs(s).evaluate(p); verdict.Accepted != tt.want {
			t.Errorf("%s: ours says %v (%s), but the API: %s", tt.name, verdict.Accepted, verdict.Rule, tt.api)
		}
		theirs.set(s)
		if have := theirs.accepts(p); have != (tt.kubeNetpol == 1) {
			t.Errorf("%s: kube-network-policies says %v by now: the case is no difference any longer", tt.name, have)
		}
		if tt.byCyclonus == no {
			continue
		}
		if have := newCyclonus(s).accepts(p); have != (tt.byCyclonus == 1) {
			t.Errorf("%s: cyclonus says %v by now: the case is no difference any longer", tt.name, have)
		}
	}
}
