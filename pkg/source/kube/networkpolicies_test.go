package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// received keeps the pods of the cluster as they are delivered.
type received struct {
	mu       sync.Mutex
	pods     map[model.Name]*model.PolicyPod
	replaced int
}

func newReceived() *received { return &received{pods: map[model.Name]*model.PolicyPod{}} }

// SetPod stores a pod.
func (r *received) SetPod(pod *model.PolicyPod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[pod.Name] = pod
}

// DeletePod forgets a pod.
func (r *received) DeletePod(name model.Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, name)
}

// ReplacePods forgets all other pods.
func (r *received) ReplacePods(pods []*model.PolicyPod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replaced++
	clear(r.pods)
	for _, pod := range pods {
		r.pods[pod.Name] = pod
	}
}

// ForgetPods forgets all pods.
func (r *received) ForgetPods() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.pods)
}

func (r *received) lists() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replaced
}

// names returns the pods of a namespace with their first addresses.
func (r *received) names(namespace string) (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(r.pods), model.Name.Compare) {
		if name.Namespace == namespace {
			list = append(list, fmt.Sprint(name.Name, " ", r.pods[name].Addrs))
		}
	}
	return list
}

// forgetful answers as a server does that does not know ClusterNetworkPolicies.
type forgetful struct {
	next    http.RoundTripper
	forgets *atomic.Bool
}

// RoundTrip sends a request.
func (f forgetful) RoundTrip(request *http.Request) (*http.Response, error) {
	if f.forgets.Load() && strings.HasSuffix(request.URL.Path, "/clusternetworkpolicies") {
		return older{code: http.StatusNotFound, why: metav1.StatusReasonNotFound, ends: &atomic.Bool{}}.refuse(request), nil
	}
	return f.next.RoundTrip(request)
}

// followPolicies follows policies as the agent does, with its permissions and those to read policies.
func (w *apiNamespace) followPolicies(log *logBuffer) *received {
	w.Helper()
	w.asAgent()
	cfg := w.server.Config()
	cfg.Dial = w.line.dial
	w.forgets = &atomic.Bool{}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return forgetful{next, w.forgets} })
	pods := newReceived()
	var err error
	w.source, err = New(Config{REST: cfg, NodeName: node, Policies: true, ClusterPods: pods, PodSlices: w.sliced, Store: w.store, Log: slog.New(slog.NewTextHandler(log, nil))})
	w.must(err)
	w.source.demanded.stopAfter = 100 * time.Millisecond
	for _, k := range w.source.kinds {
		if followed, ok := k.(*kind[*source.ClusterPolicy, model.NetworkPolicy]); ok {
			followed.lacking = 50 * time.Millisecond
		}
	}
	if followed, ok := w.source.demanded.followed.(*kind[*source.CheckedPodSlice, source.PodsOfSlice]); ok {
		followed.lacking = 50 * time.Millisecond
	}
	w.follow()
	return pods
}

// testNetworkPolicies creates, changes and deletes a NetworkPolicy, and a bad one whose event arrives.
func testNetworkPolicies(w *apiNamespace) {
	w.followPolicies(&logBuffer{})
	found := func(name string) *model.NetworkPolicy {
		list, _ := w.store.NetworkPolicies()
		for _, policy := range list {
			if policy.Name == w.name(name) {
				return policy
			}
		}
		return nil
	}
	policies := w.client.NetworkingV1().NetworkPolicies(w.namespace)
	object := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	object.Spec.PodSelector.MatchLabels = map[string]string{"app": "web"}
	object.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}
	made, err := policies.Create(w.ctx, object, metav1.CreateOptions{})
	w.must(err)
	w.await("the policy", func() bool { return found("web") != nil })
	if have := found("web"); have.UID != string(made.UID) || !have.Isolates[model.Ingress] || have.Isolates[model.Egress] || len(have.Rules[model.Ingress]) != 1 {
		w.Errorf("the policy is %+v", have)
	}
	w.await("both kinds to be complete", func() bool { _, complete := w.store.NetworkPolicies(); return complete })
	made.Spec.Ingress = nil
	_, err = policies.Update(w.ctx, made, metav1.UpdateOptions{})
	w.must(err)
	w.await("its edit", func() bool { return len(found("web").Rules[model.Ingress]) == 0 })

	w.source.Events().Warn(found("web").Key(), string(made.UID), "InvalidPeer", "nobody knows it")
	w.await("the event", func() bool { return len(w.ourEvents()) == 1 })
	if about := w.ourEvents()[0].InvolvedObject; about.APIVersion != "networking.k8s.io/v1" || about.Kind != "NetworkPolicy" || about.UID != made.UID {
		w.Errorf("the event is about %+v", about)
	}
	w.must(policies.Delete(w.ctx, "web", metav1.DeleteOptions{}))
	w.await("the policy to go", func() bool { return found("web") == nil })
	w.checkWatched("networkpolicies", 0)
}

// checkWatched fails the test if changes of the kind have come by more lists than there were: a watch whose events
// cannot be decoded ends with the first one.
func (w *apiNamespace) checkWatched(kind string, lists uint64) {
	w.Helper()
	if have := w.kind(kind).Relists; have != lists {
		w.Errorf("%s were listed again %d times, rather than watched", kind, have-lists)
	}
}

// createPod creates a pod of another node with an address, if it is given one.
func (w *apiNamespace) createPod(name, addr string, host bool) {
	w.Helper()
	pods := w.client.CoreV1().Pods(w.namespace)
	made, err := pods.Create(w.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: "worker-2", HostNetwork: host, Containers: []corev1.Container{{
			Name: "c", Image: "none", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, HostPort: map[bool]int32{true: 8080}[host]}},
		}}},
	}, metav1.CreateOptions{})
	w.must(err)
	if addr != "" {
		w.setStatus(made, corev1.PodRunning, addr)
	}
}

func (w *apiNamespace) setStatus(pod *corev1.Pod, phase corev1.PodPhase, addr string) {
	w.Helper()
	pod.Status.PodIP, pod.Status.PodIPs, pod.Status.Phase = addr, []corev1.PodIP{{IP: addr}}, phase
	_, err := w.client.CoreV1().Pods(w.namespace).UpdateStatus(w.ctx, pod, metav1.UpdateOptions{})
	w.must(err)
}

// testClusterPods checks that the pods of all nodes come only while they are needed, and of them only
// those that own an address.
func testClusterPods(w *apiNamespace) {
	w.createPod("first", "10.1.0.1", false)
	w.createPod("host", "192.0.2.1", true)
	w.createPod("pending", "", false)
	pods := w.followPolicies(&logBuffer{})
	has := func(want ...string) func() bool {
		return func() bool { return slices.Equal(pods.names(w.namespace), want) }
	}
	w.createPod("second", "10.1.0.2", false)
	w.settle()
	if !has()() || pods.lists() != 0 || slices.ContainsFunc(w.source.Status().Kinds, func(k KindStatus) bool { return k.Kind == "clusterpods" }) {
		w.Fatalf("nobody needs the pods, but there are %q after %d lists", pods.names(w.namespace), pods.lists())
	}
	w.source.NeedClusterPods(true)
	w.await("the pods", has("first [10.1.0.1]", "second [10.1.0.2]"))
	want := &model.PolicyPod{
		Name: w.name("first"), Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}, Labels: map[string]string{"app": "first"},
		Ports: []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
	if have := *pods.pods[w.name("first")]; have.Created == 0 || fmt.Sprint(have.Labels, have.Ports, have.Addrs) != fmt.Sprint(want.Labels, want.Ports, want.Addrs) {
		w.Errorf("the pod is %+v", have)
	}
	w.createPod("third", "10.1.0.3", false)
	w.await("a new pod", has("first [10.1.0.1]", "second [10.1.0.2]", "third [10.1.0.3]"))
	made, err := w.client.CoreV1().Pods(w.namespace).Get(w.ctx, "first", metav1.GetOptions{})
	w.must(err)
	w.setStatus(made, corev1.PodSucceeded, "10.1.0.1")
	w.await("a pod that has ended to go", has("second [10.1.0.2]", "third [10.1.0.3]"))
	w.checkWatched("clusterpods", 0)

	// Not needed for a moment is no reason to list all pods again.
	lists := pods.lists()
	w.source.demanded.stopAfter = time.Hour
	w.source.NeedClusterPods(false)
	w.source.NeedClusterPods(true)
	w.createPod("fourth", "10.1.0.4", false)
	w.await("a pod after a moment", has("fourth [10.1.0.4]", "second [10.1.0.2]", "third [10.1.0.3]"))
	if pods.lists() != lists {
		w.Errorf("all pods were listed again")
	}
}

// testUnneededPods checks that pods are forgotten once nobody needs them, and come again.
func testUnneededPods(w *apiNamespace) {
	w.createPod("first", "10.1.0.1", false)
	pods := w.followPolicies(&logBuffer{})
	for range 2 {
		w.source.NeedClusterPods(true)
		w.await("the pod", func() bool { return len(pods.names(w.namespace)) == 1 })
		w.source.NeedClusterPods(false)
		w.await("it to be forgotten", func() bool { return len(pods.names(w.namespace)) == 0 })
	}
}

// testClusterNetworkPolicies follows the kind from before the cluster has it until after. What the
// server did not say was deleted stays while it does not know the kind.
func testClusterNetworkPolicies(w *apiNamespace) {
	w.followPolicies(&logBuffer{})
	lacking := func() bool { return w.kind("clusternetworkpolicies").Lacking }
	w.await("the kind to be missed", lacking)
	w.await("what there is to be complete", func() bool { list, complete := w.store.NetworkPolicies(); return complete && len(list) == 0 })
	client, err := dynamic.NewForConfig(w.server.Config())
	w.must(err)
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	definition := &unstructured.Unstructured{}
	w.must(yaml.Unmarshal([]byte(clusterPolicyDefinition), &definition.Object))
	_, err = definitions.Create(w.ctx, definition, metav1.CreateOptions{})
	w.must(err)
	w.await("the kind to be found", func() bool { return !lacking() })
	listed := w.kind("clusternetworkpolicies").Relists

	policies := client.Resource(source.ClusterPolicyGroup().WithResource("clusternetworkpolicies"))
	object := &unstructured.Unstructured{}
	w.must(yaml.Unmarshal([]byte(`{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: deny}, spec: {
		tier: Admin, priority: 7, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]}}`), &object.Object))
	made, err := policies.Create(w.ctx, object, metav1.CreateOptions{})
	w.must(err)
	first := func() *model.NetworkPolicy {
		if list, _ := w.store.NetworkPolicies(); len(list) == 1 {
			return list[0]
		}
		return nil
	}
	w.await("the policy", func() bool { return first() != nil })
	if have := first(); have.Tier != model.TierAdmin || have.Priority != 7 || len(have.Rules[model.Egress]) != 1 || have.Problems != nil {
		w.Errorf("the policy is %+v", have)
	}
	w.source.Events().Warn(first().Key(), string(made.GetUID()), "DomainNames", "not yet")
	w.await("its event", func() bool {
		list, err := w.client.CoreV1().Events(metav1.NamespaceDefault).List(w.ctx, metav1.ListOptions{})
		w.must(err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "ClusterNetworkPolicy" && e.InvolvedObject.Name == "deny" && e.InvolvedObject.UID == made.GetUID()
		})
	})

	w.checkWatched("clusternetworkpolicies", listed)

	// A server that does not know the kind says nothing about its objects.
	w.forgets.Store(true)
	w.line.cut()
	w.line.mend()
	w.await("the kind to be missed although it is there", lacking)
	if first() == nil {
		w.Error("the policy is gone without a word from the server")
	}
	w.forgets.Store(false)
	w.await("the kind to be known again", func() bool { return !lacking() && first() != nil })

	// The server deletes the objects of a kind that is removed, and says so: then they are gone.
	w.must(definitions.Delete(w.ctx, definition.GetName(), metav1.DeleteOptions{}))
	w.await("the kind to be missed again", lacking)
	if first() != nil {
		w.Error("the server said that the policy was deleted, but it is still there")
	}
	w.await("its definition to go", func() bool {
		_, err := definitions.Get(w.ctx, definition.GetName(), metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// clusterPolicyDefinition is as much of the kind's definition as a server needs.
const clusterPolicyDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusternetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for tests"}
spec:
  group: policy.networking.k8s.io
  names: {kind: ClusterNetworkPolicy, plural: clusternetworkpolicies, singular: clusternetworkpolicy, listKind: ClusterNetworkPolicyList}
  scope: Cluster
  versions:
  - name: v1alpha2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
