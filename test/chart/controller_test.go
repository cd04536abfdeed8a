package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// ofAgent leaves out what the controller has, and ofController everything else.
func ofAgent(all []manifest) []manifest {
	return slices.DeleteFunc(slices.Clone(all), func(m manifest) bool { return strings.HasPrefix(m.file, "controller") })
}

func ofController(all []manifest) []manifest {
	return slices.DeleteFunc(slices.Clone(all), func(m manifest) bool { return !strings.HasPrefix(m.file, "controller") })
}

// There is a controller where policies are followed, and then everything that it needs.
func TestController(t *testing.T) {
	t.Parallel()
	for name, given := range map[string][]values{
		"off": {at("policies", "off")}, "chained": {at("podNetwork", "chained")}, "no pod network": {at("podNetwork", "off")}, "accelerate only": {at("mode", "accelerate-only")},
	} {
		if all := ofController(render(t, given...)); len(all) != 0 {
			t.Errorf("%s: it has %d objects", name, len(all))
		}
	}
	for name, given := range map[string][]values{"defaults": nil, "audit": {at("policies", "audit")}, "older values": {at("controller", nil)}} {
		var have []string
		for _, m := range ofController(render(t, given...)) {
			have = append(have, typeOf(m.object))
		}
		slices.Sort(have)
		want := []string{"*v1.ClusterRole", "*v1.ClusterRoleBinding", "*v1.Deployment", "*v1.Role", "*v1.RoleBinding", "*v1.ServiceAccount"}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s (-want +have):\n%s", name, diff)
		}
	}
}

// The controller may read policies, write their status, and hold its Lease. Agents may do nothing of that but read.
func TestRightsOfTheController(t *testing.T) {
	t.Parallel()
	all := ofController(render(t))
	account, deployment := the[*corev1.ServiceAccount](t, all), the[*appsv1.Deployment](t, all)
	role, inNamespace := the[*rbacv1.ClusterRole](t, all), the[*rbacv1.Role](t, all)
	const group = "policy.networking.k8s.io"
	if diff := cmp.Diff([]rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{"clusternetworkpolicies"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{group}, Resources: []string{"clusternetworkpolicies/status"}, Verbs: []string{"patch"}},
	}, role.Rules); diff != "" {
		t.Errorf("in the cluster (-want +have):\n%s", diff)
	}
	// Only where agents read slices may it read pods, and write slices.
	sliced := the[*rbacv1.ClusterRole](t, ofController(render(t, at("policyPods", "slices"))))
	if diff := cmp.Diff(append(role.Rules,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{"fairlead.io"}, Resources: []string{"podslices"}, Verbs: []string{"list", "watch", "create", "update", "delete"}},
	), sliced.Rules); diff != "" {
		t.Errorf("with slices (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff([]rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"fairlead-controller"}, Verbs: []string{"get", "update"}},
	}, inNamespace.Rules); diff != "" {
		t.Errorf("in its namespace (-want +have):\n%s", diff)
	}
	is := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: "kube-system"}}
	wide, narrow := the[*rbacv1.ClusterRoleBinding](t, all), the[*rbacv1.RoleBinding](t, all)
	if !cmp.Equal(wide.Subjects, is) || !cmp.Equal(narrow.Subjects, is) || wide.RoleRef.Name != role.Name || narrow.RoleRef.Name != inNamespace.Name || inNamespace.Namespace != "kube-system" {
		t.Errorf("bound: %+v, %+v", wide, narrow)
	}
	if pod := deployment.Spec.Template.Spec; pod.ServiceAccountName != account.Name || account.Name == daemonSet(t).Spec.Template.Spec.ServiceAccountName {
		t.Errorf("it runs as %s, and its account is %s", pod.ServiceAccountName, account.Name)
	}
}

// It is a pod like any other, without any privilege, of the same image as agents, and no agent's selector selects it.
func TestPodOfTheController(t *testing.T) {
	t.Parallel()
	given := []values{at("image.digest", "sha256:"+strings.Repeat("a", 64)), at("log.level", "debug"), at("controller.replicas", 2), at("imagePullSecrets", []any{values{"name": "s"}}),
		at("hostRouting", "stack")}
	all := render(t, given...)
	deployment, set := the[*appsv1.Deployment](t, all), the[*appsv1.DaemonSet](t, all)
	pod := deployment.Spec.Template.Spec
	yes, no, nobody := true, false, int64(65532)
	if pod.HostNetwork || pod.HostPID || pod.HostIPC || len(pod.Volumes) != 0 || len(pod.InitContainers) != 0 || len(pod.Containers) != 1 || *pod.EnableServiceLinks {
		t.Errorf("the pod: %+v", pod)
	}
	if diff := cmp.Diff(&corev1.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &nobody, RunAsGroup: &nobody, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}, pod.SecurityContext); diff != "" {
		t.Errorf("the pod (-want +have):\n%s", diff)
	}
	container := named(t, pod.Containers, "controller")
	if diff := cmp.Diff(&corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}, container.SecurityContext); diff != "" {
		t.Errorf("its container (-want +have):\n%s", diff)
	}
	if container.Image != named(t, set.Spec.Template.Spec.Containers, "agent").Image || pod.ImagePullSecrets[0].Name != "s" || *deployment.Spec.Replicas != 2 {
		t.Errorf("%d of %s", *deployment.Spec.Replicas, container.Image)
	}
	if diff := cmp.Diff([]string{"controller", "--lease-name=fairlead-controller", "--log-format=text", "--log-level=debug"}, container.Args); diff != "" {
		t.Errorf("arguments (-want +have):\n%s", diff)
	}
	checkFlags(t, container.Args)
	selected := func(by, labels map[string]string) bool {
		for key, value := range by {
			if labels[key] != value {
				return false
			}
		}
		return true
	}
	if labels := deployment.Spec.Template.Labels; selected(set.Spec.Selector.MatchLabels, labels) || !selected(deployment.Spec.Selector.MatchLabels, labels) ||
		selected(deployment.Spec.Selector.MatchLabels, set.Spec.Template.Labels) {
		t.Errorf("the pod's labels: %v", labels)
	}
}

// The kind of slices comes with the chart where agents read them, and only there: as a template, so that an upgrade changes
// it, and a removal takes it along.
func TestPodSlices(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		given []values
		want  bool
	}{
		"defaults":        {nil, false},
		"slices":          {[]values{at("policyPods", "slices")}, true},
		"audit":           {[]values{at("policyPods", "slices"), at("policies", "audit")}, true},
		"no policies":     {[]values{at("policyPods", "slices"), at("policies", "off")}, false},
		"accelerate only": {[]values{at("policyPods", "slices"), at("mode", "accelerate-only")}, false},
	} {
		text := mustTemplate(t, test.given...)
		if have := strings.Contains(text, "name: podslices.fairlead.io"); have != test.want {
			t.Errorf("%s: the kind is there: %t", name, have)
		}
		if have := strings.Contains(text, `- "--policy-pods=slices"`); have != test.want {
			t.Errorf("%s: the controller writes them: %t", name, have)
		}
	}
}
