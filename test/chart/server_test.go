package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/test/apiserver"
)

// All tests that need an API server share one.
func TestServer(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	awaitSystem(t, server)
	t.Run("takes everything", func(t *testing.T) { takesEverything(t, server) })
	t.Run("takes what is for Prometheus' operator", func(t *testing.T) { takesMonitoring(t, server) })
	t.Run("release", func(t *testing.T) { release(t, server) })
	t.Run("policies are checked", func(t *testing.T) { policiesAreChecked(t, server) })
	t.Run("own node", func(t *testing.T) { ownNode(t, server) })
}

// awaitSystem waits for the namespace kube-system, which the server creates some time after it is
// ready.
func awaitSystem(t *testing.T, server *apiserver.Server) {
	t.Helper()
	client, deadline := server.Client(), time.Now().Add(time.Minute)
	for {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsNotFound(err) || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// release tests installing, changing, rolling back and removing the chart by helm. A cluster made
// by kubeadm says where its API server is, so the chart needs no values at all.
func release(t *testing.T, server *apiserver.Server) {
	client, ctx := server.Client(), t.Context()
	flags := []string{"--kubeconfig=" + server.Kubeconfig(), "--namespace=kube-system"}
	mustRun := func(args ...string) string {
		t.Helper()
		out, err := run(t, append(args, flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if _, err := run(t, append([]string{"install", "fairlead", folder}, flags...)...); err == nil || !strings.Contains(err.Error(), "does not say so in kube-public/cluster-info") {
		t.Fatalf("without cluster-info: %v", err)
	}
	announce(t, client, "https://[2001:db8::1]:8443")
	notes := mustRun("install", "fairlead", folder)
	for _, want := range []string{
		"NetworkPolicies and ClusterNetworkPolicies are enforced. \"kubectl describe clusternetworkpolicy\" says", "kubectl -n kube-system rollout status daemonset/fairlead",
		"kubectl -n kube-system exec daemonset/fairlead -c agent -- /fairlead status", "--set cleanup=true --wait --wait-for-jobs fairlead CHART", "--set drain=10m",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q: %s", want, notes)
		}
	}
	agent := func() (environment map[string]string, level string) {
		t.Helper()
		set, err := client.AppsV1().DaemonSets("kube-system").Get(ctx, "fairlead", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		environment = map[string]string{}
		for _, env := range named(t, set.Spec.Template.Spec.Containers, "agent").Env {
			environment[env.Name] = env.Value
		}
		options, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, "fairlead", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return environment, options.Data["log-level"] + " " + options.Data["routing"]
	}
	if env, options := agent(); env["KUBERNETES_SERVICE_HOST"] != "2001:db8::1" || env["KUBERNETES_SERVICE_PORT"] != "8443" || options != "info vxlan" {
		t.Errorf("installed: %v, %s", env, options)
	}
	mustRun("upgrade", "fairlead", folder, "--reuse-values", "--set=log.level=debug")
	mustRun("upgrade", "fairlead", folder, "--reuse-values", "--set=routing=native")
	if _, options := agent(); options != "debug native" {
		t.Errorf("upgraded: %s", options)
	}
	mustRun("upgrade", "fairlead", folder, "--reset-then-reuse-values", "--set=log.format=json") // as an upgrade to another version would
	if _, options := agent(); options != "debug native" {
		t.Errorf("upgraded to another version: %s", options)
	}
	mustRun("rollback", "fairlead", "1")
	if _, options := agent(); options != "info vxlan" {
		t.Errorf("rolled back: %s", options)
	}
	cleaning(t, server, mustRun)
	mustRun("uninstall", "fairlead")
	if _, err := client.AppsV1().DaemonSets("kube-system").Get(ctx, "fairlead", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("uninstalled: the DaemonSet: %v", err)
	}
	if roles, err := client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=fairlead"}); err != nil || len(roles.Items) != 0 {
		t.Errorf("uninstalled: %d ClusterRoles, %v", len(roles.Items), err)
	}
}

// cleaning tests the last step before an uninstall: the agents are gone, and each Linux node has
// its own cleanup job.
func cleaning(t *testing.T, server *apiserver.Server, mustRun func(args ...string) string) {
	t.Helper()
	client, ctx := server.Client(), t.Context()
	for name, labels := range map[string]map[string]string{
		"plain": nil, "linux": {"kubernetes.io/os": "linux"}, "windows": {"kubernetes.io/os": "windows"},
	} {
		if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The server accepts everything that is rendered, field by field.
	text := mustRun("template", "fairlead", folder, "--dry-run=server", "--set=cleanup=true", "--set=drain=10m", "--set=bpf.root=/run/bpf", "--set=cni.confPath=/etc/rancher/net.d", "--set=image.tag=v9")
	apply := applier(t, server)
	for _, m := range manifests(t, text) {
		if err := apply(m.text); err != nil {
			t.Errorf("%s: %v", m.file, err)
		}
		if job, ok := m.object.(*batchv1.Job); ok {
			checkJob(t, job)
		}
	}
	documentedJob(t, manifests(t, mustRun("template", "fairlead", folder, "--dry-run=server", "--set=cleanup=true")))
	if notes := mustRun("upgrade", "fairlead", folder, "--reuse-values", "--set=cleanup=true"); !strings.Contains(notes, "helm uninstall") {
		t.Errorf("notes: %s", notes)
	}
	if _, err := client.AppsV1().DaemonSets("kube-system").Get(ctx, "fairlead", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("cleaning: the DaemonSet: %v", err)
	}
	if _, err := client.AppsV1().Deployments("kube-system").Get(ctx, "fairlead-controller", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("cleaning: the controller: %v", err)
	}
	jobs, err := client.BatchV1().Jobs("kube-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{}
	for _, job := range jobs.Items {
		nodes = append(nodes, job.Spec.Template.Spec.NodeName)
	}
	slices.Sort(nodes)
	if diff := cmp.Diff([]string{"linux", "plain"}, nodes); diff != "" {
		t.Errorf("jobs (-nodes +have):\n%s", diff)
	}
}

// checkJob checks that a node's cleanup job finds what the agents have left there, at the paths
// that the values set.
func checkJob(t *testing.T, job *batchv1.Job) {
	t.Helper()
	pod := job.Spec.Template.Spec
	c := named(t, pod.Containers, "cleanup")
	want := []string{"cleanup", "--bpffs=/run/bpf", "--cni-conf-dir=/host/etc/cni/net.d", "--cni-conf-name=05-fairlead.conflist", "--cni-bin-dir=/host/opt/cni/bin", "--drain=10m"}
	if diff := cmp.Diff(want, c.Args); diff != "" {
		t.Errorf("arguments (-want +have):\n%s", diff)
	}
	checkFlags(t, c.Args)
	places := []mount{{"/run/bpf", "/run/bpf", "rw"}, {"/run", "/run", "rw"}, {"/host/etc/cni/net.d", "/etc/rancher/net.d", "rw"}, {"/host/opt/cni/bin", "/opt/cni/bin", "rw"}}
	if diff := cmp.Diff(places, mounts(pod, c), cmp.AllowUnexported(mount{})); diff != "" {
		t.Errorf("mounts (-want +have):\n%s", diff)
	}
	everywhere := len(pod.Tolerations) == 1 && pod.Tolerations[0] == (corev1.Toleration{Operator: corev1.TolerationOpExists})
	if !everywhere || !pod.HostNetwork || *pod.AutomountServiceAccountToken || !*c.SecurityContext.Privileged || c.Image != "fairlead.io/fairlead:v9" {
		t.Errorf("job: %+v", pod)
	}
}

// documentedJob checks that what deploy/README.md says for use without helm is the chart's job for
// a node.
func documentedJob(t *testing.T, all []manifest) {
	t.Helper()
	content, err := os.ReadFile("../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), "    apiVersion: batch/v1\n")
	text, _, _ := strings.Cut("    apiVersion: batch/v1\n"+rest, "\n\n")
	var have batchv1.Job
	if err := yaml.UnmarshalStrict([]byte(text), &have); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		want, ok := m.object.(*batchv1.Job)
		if !ok {
			continue
		}
		want.Spec.Template.Spec.NodeName = "NODE"
		want.Spec.Template.Labels = nil
		if diff := cmp.Diff(want.Spec, have.Spec); diff != "" || want.Namespace != have.Namespace {
			t.Errorf("deploy/README.md (-chart +documented):\n%s", diff)
		}
		return
	}
	t.Error("the chart renders no job")
}

// announce publishes the API server's address as kubeadm does.
func announce(t *testing.T, client kubernetes.Interface, url string) {
	t.Helper()
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    certificate-authority-data: eA==\n    server: %s\n", url)
	ctx := t.Context()
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-public"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": kubeconfig}}
	if _, err := client.CoreV1().ConfigMaps("kube-public").Create(ctx, info, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// applier returns a function that has the server validate a manifest.
func applier(t *testing.T, server *apiserver.Server) func(text string) error {
	t.Helper()
	client, err := dynamic.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(server.Client().Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	return func(text string) error {
		object := &unstructured.Unstructured{}
		decode(t, text, &object.Object)
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		var where dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			where = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
		}
		body, err := json.Marshal(object)
		if err != nil {
			return err
		}
		force := true
		_, err = where.Patch(t.Context(), object.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
			DryRun: []string{metav1.DryRunAll}, FieldManager: "test", Force: &force, FieldValidation: metav1.FieldValidationStrict,
		})
		return err
	}
}

// takesEverything checks that a real API server accepts every manifest, field by field, as kubectl
// apply --dry-run=server does.
func takesEverything(t *testing.T, server *apiserver.Server) {
	apply := applier(t, server)
	for name, given := range map[string][]values{
		"defaults": nil,
		"chained":  {at("podNetwork", "chained")},
		"off":      {at("podNetwork", "off"), at("rbac.create", false)},
		"alone":    {alone},
		"past TCP": {at("sockmap", values{"enabled": true, "selector": "app in (web, api)"}), at("serviceAccount.annotations", values{"example.com/role": "agent"}), at("nameOverride", "net")},
		"more": {
			at("ipMasqAgent", values{"enabled": true, "config": values{"nonMasqueradeCIDRs": []string{"10.0.0.0/8"}}}), at("metrics.address", ":10249"),
			at("dashboards.enabled", true), at("devices", []string{"eth0", "eth*"}),
			at("podAnnotations.a", "b"), at("podLabels.c", "d"), at("resources.limits.memory", "64Gi"), at("bpf.ctMax", 1<<26), at("ready.address", "[::1]:1"),
			at("extraEnv", []any{values{"name": "A", "valueFrom": values{"secretKeyRef": values{"name": "s", "key": "k"}}}}), at("k8sServiceHost", "2001:db8::1"),
		},
	} {
		for _, m := range render(t, given...) {
			if err := apply(m.text); err != nil {
				t.Errorf("%s: %s: %v", name, m.file, err)
			}
		}
	}
	// The server really checks fields.
	for _, m := range render(t) {
		if m.file == "daemonset.yaml" {
			if err := apply(strings.Replace(m.text, "priorityClassName:", "priorityClas:", 1)); err == nil || !strings.Contains(err.Error(), "priorityClas") {
				t.Errorf("a field that does not exist: %v", err)
			}
		}
	}
}

// takesMonitoring checks that the objects for the Prometheus operator match its CRDs.
func takesMonitoring(t *testing.T, server *apiserver.Server) {
	teachOperator(t, server)
	apply, taken := applier(t, server), map[string]bool{}
	for _, monitor := range []string{"podMonitor", "serviceMonitor"} { // the chart renders only one of them
		labels := values{"release": "prometheus"}
		for _, m := range render(t, at("metrics", values{
			"address": ":10249", monitor: values{"enabled": true, "labels": labels, "interval": "15s"},
			"prometheusRule": values{"enabled": true, "labels": labels},
		})) {
			if err := apply(m.text); err != nil {
				t.Errorf("%s: %v", m.file, err)
			}
			taken[m.file] = true
			if m.file != "podmonitor.yaml" {
				continue
			}
			if err := apply(strings.Replace(m.text, "podMetricsEndpoints:", "podMetricEndpoints:", 1)); err == nil || !strings.Contains(err.Error(), "podMetricEndpoints") {
				t.Errorf("a field that does not exist: %v", err)
			}
		}
	}
	for _, file := range []string{"podmonitor.yaml", "servicemonitor.yaml", "prometheusrule.yaml"} {
		if !taken[file] {
			t.Errorf("%s is not rendered", file)
		}
	}
}
