package file

import (
	"strings"
	"testing"
)

func TestPolicies(t *testing.T) {
	const (
		policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\nspec: {podSelector: {}}\n"
		other  = "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n"
	)
	cluster := strings.NewReplacer("networking.k8s.io/v1\n", "policy.networking.k8s.io/v1alpha2\n", "NetworkPolicy", "ClusterNetworkPolicy", "{podSelector: {}}",
		"\n  tier: Admin\n  subject: {namespaces: {}}\n  egress:\n  - action: Accept\n    to: [{namespaces: {}}]\n    protocols:\n    - tcp: {sourcePort: 53}").Replace(policy)
	list, err := Policies("a.yaml", []byte(other+"---\n"+policy))
	if err != nil || len(list) != 1 || list[0].Name.String() != "shop/web" {
		t.Errorf("%v, %v", err, list)
	}
	for text, says := range map[string]string{
		other:                                   "neither a NetworkPolicy nor",
		"":                                      "neither a NetworkPolicy nor",
		policy + "---\nkind: [":                 "a.yaml:",
		policy + "---\n" + policy:               "a.yaml:6: NetworkPolicy shop/web",
		strings.ReplaceAll(policy, "{}", "[1]"): "spec.podSelector",
		cluster:                                 "a.yaml:11: unknown field \"spec.egress[0].protocols[0].tcp.sourcePort\"",
		strings.ReplaceAll(cluster, "action: Accept", "action: 1"): "a.yaml:8: field \"spec.egress[0].action\" is a number",
		"\x00\xff": "a.yaml",
	} {
		if list, err := Policies("a.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v; want %q", text, err, list, says)
		}
	}
}
