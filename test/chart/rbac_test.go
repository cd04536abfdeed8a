package chart

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// rights returns what the ClusterRole allows, sorted.
func rights(t *testing.T, all []manifest) (have []string) {
	t.Helper()
	for _, rule := range the[*rbacv1.ClusterRole](t, ofAgent(all)).Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					have = append(have, verb+" "+group+"/"+resource)
				}
			}
		}
	}
	slices.Sort(have)
	return have
}

// The agent may read what it translates, report problems with it, and change its Node. It may read
// no Secret and no ConfigMap.
func TestRights(t *testing.T) {
	t.Parallel()
	all := render(t)
	have := rights(t, all)
	want := []string{"create /events", "patch /nodes", "patch /nodes/status"}
	for _, of := range []string{"/services", "/nodes", "/namespaces", "/pods", "discovery.k8s.io/endpointslices", "networking.k8s.io/servicecidrs",
		"networking.k8s.io/networkpolicies", "policy.networking.k8s.io/clusternetworkpolicies"} {
		want = append(want, "get "+of, "list "+of, "watch "+of)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("rights (-want +have):\n%s", diff)
	}
	// Only the agent that gives pods their network sets the condition that says so.
	for _, mode := range []string{"chained", "off"} {
		if have := rights(t, render(t, at("podNetwork", mode))); slices.Contains(have, "patch /nodes/status") || !slices.Contains(have, "patch /nodes") {
			t.Errorf("rights with podNetwork %s: %v", mode, have)
		}
	}
	// Agents that enforce no policies may count NetworkPolicies, and not read others.
	for _, given := range []values{at("policies", "off"), at("podNetwork", "chained"), at("podNetwork", "off")} {
		var rest []string
		for _, right := range rights(t, render(t, given)) {
			if strings.HasSuffix(right, "networkpolicies") {
				rest = append(rest, right)
			}
		}
		if !slices.Equal(rest, []string{"list networking.k8s.io/networkpolicies"}) {
			t.Errorf("with %v, rights about policies: %v", given, rest)
		}
	}
	// Agents that read slices may not write them, and others may do neither.
	sliced := slices.Sorted(slices.Values(append([]string{"get fairlead.io/podslices", "list fairlead.io/podslices", "watch fairlead.io/podslices"}, want...)))
	if diff := cmp.Diff(sliced, rights(t, render(t, at("policyPods", "slices")))); diff != "" {
		t.Errorf("rights with slices (-want +have):\n%s", diff)
	}
	// Agents that do not use an optional API may not read it.
	want = append(want, "get fairlead.io/socketaccelerations", "list fairlead.io/socketaccelerations", "watch fairlead.io/socketaccelerations")
	slices.Sort(want)
	if diff := cmp.Diff(want, rights(t, render(t, at("sockmap.enabled", true)))); diff != "" {
		t.Errorf("rights where connections may go past TCP (-want +have):\n%s", diff)
	}
	account := the[*corev1.ServiceAccount](t, ofAgent(all))
	binding := the[*rbacv1.ClusterRoleBinding](t, ofAgent(all))
	if s := binding.Subjects; len(s) != 1 || s[0] != (rbacv1.Subject{Kind: "ServiceAccount", Name: account.Name, Namespace: "kube-system"}) {
		t.Errorf("bound to %+v", s)
	}
	if binding.RoleRef.Name != the[*rbacv1.ClusterRole](t, ofAgent(all)).Name || daemonSet(t).Spec.Template.Spec.ServiceAccountName != account.Name {
		t.Error("agents do not have these rights")
	}
	policy, bound := the[*admissionv1.ValidatingAdmissionPolicy](t, all), the[*admissionv1.ValidatingAdmissionPolicyBinding](t, all)
	if bound.Spec.PolicyName != policy.Name {
		t.Errorf("the policy %s is not bound, %s is", policy.Name, bound.Spec.PolicyName)
	}
}

// docs/limits.md lists exactly the APIs that the agent uses.
func TestAPIsOfTheAgent(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for _, rule := range the[*rbacv1.ClusterRole](t, ofAgent(render(t))).Rules {
		for _, group := range rule.APIGroups {
			want[group] = group != ""
		}
	}
	delete(want, "")
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	text, _, found := strings.Cut(string(page), "; the chart also")
	_, text, agent := strings.Cut(text, "The agent uses")
	have := map[string]bool{}
	for _, name := range regexp.MustCompile(`([a-z.]+\.k8s\.io)/v1`).FindAllStringSubmatch(text, -1) {
		have[name[1]] = true
	}
	if diff := cmp.Diff(want, have); diff != "" || !found || !agent {
		t.Errorf("docs/limits.md (-want +have):\n%s", diff)
	}
}

// The chart leaves out the objects that the user creates otherwise.
func TestRightsOfOthers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		given values
		kinds []string
	}{
		{at("rbac.create", false), []string{"*v1.ConfigMap", "*v1.DaemonSet", "*v1.Deployment", "*v1.ServiceAccount", "*v1.ServiceAccount"}},
		{at("rbac.ownNodeOnly", false), []string{
			"*v1.ClusterRole", "*v1.ClusterRole", "*v1.ClusterRoleBinding", "*v1.ClusterRoleBinding", "*v1.ConfigMap", "*v1.DaemonSet", "*v1.Deployment",
			"*v1.Role", "*v1.RoleBinding", "*v1.ServiceAccount", "*v1.ServiceAccount",
		}},
		{at("serviceAccount.create", false), []string{
			"*v1.ClusterRole", "*v1.ClusterRole", "*v1.ClusterRoleBinding", "*v1.ClusterRoleBinding", "*v1.ConfigMap", "*v1.DaemonSet", "*v1.Deployment",
			"*v1.Role", "*v1.RoleBinding", "*v1.ValidatingAdmissionPolicy", "*v1.ValidatingAdmissionPolicyBinding",
		}},
	} {
		have := []string{}
		for _, m := range render(t, tt.given) {
			have = append(have, typeOf(m.object))
		}
		slices.Sort(have)
		if diff := cmp.Diff(tt.kinds, have); diff != "" {
			t.Errorf("%v (-want +have):\n%s", tt.given, diff)
		}
	}
}
