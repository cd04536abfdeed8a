package kube

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/test/apiserver"
)

// asAgent gives the namespace a Source with only the permissions of the manifest, under its policy.
func (w *apiNamespace) asAgent() {
	w.Helper()
	w.applyRights()
	cfg := w.server.Config()
	cfg.Impersonate.UserName = "system:serviceaccount:kube-system:fairlead"
	cfg.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	w.replace(cfg, w.Output())
}

// applyRights creates what the manifest says of permissions.
func (w *apiNamespace) applyRights() {
	w.Helper()
	w.await("the namespace kube-system, which the server creates some time after it is ready", func() bool {
		_, err := w.client.CoreV1().Namespaces().Get(w.ctx, "kube-system", metav1.GetOptions{})
		return err == nil
	})
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "kubernetes", "rbac.yaml"))
	w.must(err)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		var binding rbacv1.ClusterRoleBinding
		var narrow rbacv1.Role
		var narrowly rbacv1.RoleBinding
		var policy admissionv1.ValidatingAdmissionPolicy
		var bound admissionv1.ValidatingAdmissionPolicyBinding
		switch {
		case strings.Contains(document, "\nkind: ClusterRole\n"):
			w.must(yaml.UnmarshalStrict([]byte(document), &role))
			_, err = w.client.RbacV1().ClusterRoles().Create(w.ctx, &role, metav1.CreateOptions{})
		case strings.Contains(document, "\nkind: ClusterRoleBinding\n"):
			w.must(yaml.UnmarshalStrict([]byte(document), &binding))
			_, err = w.client.RbacV1().ClusterRoleBindings().Create(w.ctx, &binding, metav1.CreateOptions{})
		case strings.Contains(document, "\nkind: Role\n"):
			w.must(yaml.UnmarshalStrict([]byte(document), &narrow))
			_, err = w.client.RbacV1().Roles(narrow.Namespace).Create(w.ctx, &narrow, metav1.CreateOptions{})
		case strings.Contains(document, "\nkind: RoleBinding\n"):
			w.must(yaml.UnmarshalStrict([]byte(document), &narrowly))
			_, err = w.client.RbacV1().RoleBindings(narrowly.Namespace).Create(w.ctx, &narrowly, metav1.CreateOptions{})
		case strings.Contains(document, "\nkind: ValidatingAdmissionPolicy\n"):
			w.must(yaml.UnmarshalStrict([]byte(document), &policy))
			_, err = w.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(w.ctx, &policy, metav1.CreateOptions{})
		case strings.Contains(document, "\nkind: ValidatingAdmissionPolicyBinding\n"):
			w.must(yaml.UnmarshalStrict([]byte(document), &bound))
			_, err = w.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(w.ctx, &bound, metav1.CreateOptions{})
		}
		if !apierrors.IsAlreadyExists(err) {
			w.must(err)
		}
	}
}

// awaitPolicy waits until the server applies the policy to what the agent does to this node's object.
func (w *apiNamespace) awaitPolicy() {
	w.Helper()
	n := w.source.Node()
	w.await("the policy is in effect", func() bool {
		err := n.client.Patch(types.MergePatchType).Resource("nodes").Name(node).Param("dryRun", metav1.DryRunAll).
			Body([]byte(`{"metadata":{"labels":{"x":"y"}}}`)).Do(w.ctx).Error()
		return err != nil && strings.Contains(err.Error(), "nothing of its Node but")
	})
}

// TestNode checks that the agent removes its own taint and no other, and changes only its own
// condition.
func TestNode(t *testing.T) {
	w := newAPINamespace(t, apiserver.Start(t))
	w.asAgent()
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	others := []corev1.Taint{{Key: "a", Value: "b", Effect: corev1.TaintEffectNoExecute}, {Key: "c", Effect: corev1.TaintEffectNoSchedule}}
	object, err := w.client.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		others[0], {Key: "fairlead.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}, others[1],
		{Key: "fairlead.io/agent-not-ready", Value: "true", Effect: corev1.TaintEffectNoExecute},
	}}}, metav1.CreateOptions{})
	w.must(err)
	object.Status.Conditions = []corev1.NodeCondition{ready, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated"}}
	_, err = w.client.CoreV1().Nodes().UpdateStatus(w.ctx, object, metav1.UpdateOptions{})
	w.must(err)
	w.follow()
	w.await("the node is known", func() bool { return w.store.Self().Awaiting && !w.store.Self().Network })
	w.awaitPolicy()

	for range 2 { // the second time there is nothing to do
		w.must(w.source.Node().Connect(w.ctx))
		w.must(w.source.Node().Admit(w.ctx))
	}
	w.await("the store knows", func() bool { return !w.store.Self().Awaiting && w.store.Self().Network })
	object, err = w.client.CoreV1().Nodes().Get(w.ctx, node, metav1.GetOptions{})
	w.must(err)
	if diff := cmp.Diff(others, taintsOf(object)); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	conditions := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, c := range object.Status.Conditions {
		conditions[c.Type] = c
	}
	if c := conditions[corev1.NodeNetworkUnavailable]; len(conditions) != 2 || c.Status != corev1.ConditionFalse || c.Reason != "FairleadIsReady" || c.LastTransitionTime.IsZero() {
		t.Errorf("conditions %+v", object.Status.Conditions)
	}
	if diff := cmp.Diff(ready, conditions[corev1.NodeReady]); diff != "" {
		t.Errorf("the kubelet's condition (-want +got):\n%s", diff)
	}

	cfg := w.server.Config()
	cfg.Impersonate.UserName = "nobody"
	w.replace(cfg, w.Output())
	if err := w.source.Node().Connect(w.ctx); !apierrors.IsForbidden(err) {
		t.Errorf("without the permission: %v", err)
	}
}

// beforePatch calls a function before each patch is sent.
type beforePatch struct {
	next http.RoundTripper
	call func()
}

// RoundTrip sends a request.
func (b beforePatch) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPatch {
		b.call()
	}
	return b.next.RoundTrip(request)
}

// TestTaintsOfOthers checks that a taint that somebody adds while the agent removes its own is not
// lost.
func TestTaintsOfOthers(t *testing.T) {
	w := newAPINamespace(t, apiserver.Start(t))
	own := corev1.Taint{Key: "fairlead.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}
	object, err := w.client.CoreV1().Nodes().Create(w.ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{own}},
	}, metav1.CreateOptions{})
	w.must(err)
	other := corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule}
	add := sync.OnceFunc(func() {
		object.Spec.Taints = append(object.Spec.Taints, other)
		_, err := w.client.CoreV1().Nodes().Update(w.ctx, object, metav1.UpdateOptions{})
		w.must(err)
	})
	cfg := w.server.Config()
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return beforePatch{next, add} }
	w.replace(cfg, w.Output())
	if err := w.source.Node().Admit(w.ctx); err == nil {
		t.Error("another client's change was overwritten")
	}
	w.must(w.source.Node().Admit(w.ctx))
	object, err = w.client.CoreV1().Nodes().Get(w.ctx, node, metav1.GetOptions{})
	w.must(err)
	if diff := cmp.Diff([]corev1.Taint{other}, taintsOf(object)); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

// taintsOf returns the taints of node without the one that the server adds to every new node, and
// without the times that the server records.
func taintsOf(node *corev1.Node) (list []corev1.Taint) {
	for _, taint := range node.Spec.Taints {
		if taint.Key != corev1.TaintNodeNotReady {
			taint.TimeAdded = nil
			list = append(list, taint)
		}
	}
	return list
}
