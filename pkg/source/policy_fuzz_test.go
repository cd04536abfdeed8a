package source

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.io/fairlead/pkg/model"
)

// Whatever a policy says, what comes out is in the form that the compiler relies on, is the same each
// time, and says in a few printable lines what is wrong.
func FuzzPolicies(f *testing.F) {
	for _, seed := range []string{
		`{"podSelector":{"matchLabels":{"a":"b"}},"policyTypes":["Egress"],"egress":[{"ports":[{"port":80,"endPort":90},{"port":"http"}],"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}]}`,
		`{"ingress":[{"from":[{"podSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]},"namespaceSelector":{}}]}]}`,
		`{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Pass","to":[{"networks":["::/0"]},{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"range":{"start":1,"end":9}}}}]}]}`,
		`{"tier":"Baseline","subject":{"pods":{"namespaceSelector":{},"podSelector":{}}},"ingress":[{"name":"x","action":"Deny","from":[{"pods":{}}],"protocols":[{"destinationNamedPort":"http"}]}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		policy := &networkingv1.NetworkPolicy{}
		if json.Unmarshal(text, &policy.Spec) == nil {
			out := NetworkPolicy(policy)
			checkPolicy(t, out, NetworkPolicy(policy))
			for _, rules := range out.Rules {
				for i := range rules {
					if rules[i].Action != model.Accept {
						t.Errorf("a NetworkPolicy has %+v", rules[i])
					}
				}
			}
		}
		cluster := &ClusterPolicy{}
		if json.Unmarshal(text, &cluster.Spec) == nil {
			checkPolicy(t, ClusterNetworkPolicy(cluster), ClusterNetworkPolicy(cluster.DeepCopyObject().(*ClusterPolicy)))
			checkCondition(t, ClusterPolicyCondition(cluster))
		}
	})
}

func checkPolicy(t *testing.T, p, again *model.NetworkPolicy) {
	t.Helper()
	if !reflect.DeepEqual(p, again) {
		t.Errorf("read twice: %+v and %+v", p, again)
	}
	for _, problem := range p.Problems {
		if problem.Reason == "" || len(problem.Message) > 2000 || strings.ContainsFunc(problem.Message, func(r rune) bool { return r < ' ' }) {
			t.Errorf("problem %q", problem)
		}
	}
	if len(p.Problems) > maxProblems+1 {
		t.Errorf("%d problems", len(p.Problems))
	}
	for _, rules := range p.Rules {
		for i := range rules {
			checkRule(t, &rules[i])
		}
	}
}

func checkRule(t *testing.T, r *model.PolicyRule) {
	t.Helper()
	if !r.AnyPeer && len(r.Peers) == 0 || !r.AnyPort && len(r.Ports)+len(r.Named) == 0 {
		t.Errorf("it matches nothing: %+v", r)
	}
	for i, span := range r.Ports {
		if span.First > span.Last || i > 0 && r.Ports[i-1].Protocol == span.Protocol && r.Ports[i-1].Last >= span.First {
			t.Errorf("ports %+v", r.Ports)
		}
	}
	for _, peer := range r.Peers {
		if b := peer.Block; b != nil {
			for _, except := range b.Except {
				if except.Bits() <= b.Prefix.Bits() || !b.Prefix.Contains(except.Addr()) || except != except.Masked() {
					t.Errorf("block %+v", b)
				}
			}
		}
	}
}
