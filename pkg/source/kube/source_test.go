package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/apiserver"
)

// TestSource runs against one server, so its cases run one after another: some of them stop the
// server.
func TestSource(t *testing.T) {
	server := apiserver.Start(t)
	for _, test := range []struct {
		name string
		run  func(*apiNamespace)
	}{
		{"list and watch", testListAndWatch},
		{"labels that hand an object to others", testForeignLabels},
		{"ExternalName and back", testExternalName},
		{"recreation under one name", testRecreation},
		{"slice of another service", testSliceMoves},
		{"pods of this node", testPods},
		{"a thousand services", testBulk},
		{"kubeconfig", testKubeconfig},
		{"lost connection", testLostConnection},
		{"restart of the server", testRestart},
		{"history is gone", testCompaction},
		{"conflict event", testConflictEvent},
		{"events are few", testEventsAreFew},
		{"node event", testNodeEvent},
		{"network policies", testPolicies},
		{"policies of acceleration", testAccelerations},
		{"ranges of Services", testServiceCIDRs},
		{"ranges of Services that are forbidden", testForbiddenServiceCIDRs},
		{"network policies that are enforced", testNetworkPolicies},
		{"policies of administrators", testClusterNetworkPolicies},
		{"pods of all nodes", testClusterPods},
		{"pods of all nodes that nobody needs", testUnneededPods},
		{"pods of all nodes by slices", testPodSlices},
		{"slices that cannot be used", testBadPodSlice},
		{"conditions of policies", testConditions},
		{"one controller writes", testElection},
		{"from objects to rows", testToRows},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(newAPINamespace(t, server)) })
	}
	t.Run("two servers", func(t *testing.T) {
		other := server.Another()
		testTwoServers(newAPINamespace(t, server, other), other)
	})
}

func testListAndWatch(w *apiNamespace) {
	old := w.createService("old")
	w.createSlice("old-1", "old", "10.1.0.1", "10.1.0.2")
	if w.source.Status().Kinds[0].Synced {
		w.Error("synced before Run")
	}
	w.follow()
	service, list := w.store.Service(w.name("old"))
	if service == nil || service.UID != string(old.UID) || service.ClusterIPs[0].String() != old.Spec.ClusterIP {
		w.Fatalf("after the sync the store has %+v", service)
	}
	if len(list) != 1 || len(list[0].Endpoints) != 2 {
		w.Fatalf("after the sync the service has slices %+v", list)
	}
	if self := w.store.Self(); self.UID != "" {
		w.Errorf("there is no node yet, but %+v", self)
	}

	w.createService("new")
	w.createSlice("new-1", "new", "10.1.0.3")
	w.createSlice("new-2", "new", "10.1.0.4")
	w.await("a new service and its slices", func() bool { return w.has("new") && w.hasSlices("new", "new-1", "new-2") })
	w.updateService("old", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	w.await("a changed port", func() bool {
		service, _ := w.store.Service(w.name("old"))
		return service.Ports[0].Port == 81
	})
	w.must(w.client.DiscoveryV1().EndpointSlices(w.namespace).Delete(w.ctx, "new-1", metav1.DeleteOptions{}))
	w.await("a deleted slice to go", func() bool { return w.hasSlices("new", "new-2") })
	w.deleteService("new")
	w.await("a deleted service to go", func() bool { return !w.has("new") })
	w.testNode()

	if k := w.kind("services"); !k.Synced || k.Error != "" || k.Relists != 0 || k.ResourceVersion == "" || k.Changed.IsZero() {
		w.Errorf("status: %+v", k)
	}
}

func (w *apiNamespace) testNode() {
	w.Helper()
	nodes := w.client.CoreV1().Nodes()
	made, err := nodes.Create(w.ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.await("this node", func() bool { self := w.store.Self(); return self.UID == string(made.UID) && self.Zone == "a" })
	w.must(nodes.Delete(w.ctx, node, metav1.DeleteOptions{}))
	w.await("this node to go", func() bool { return w.store.Self().UID == "" })
}

// testForeignLabels checks that one label removes Services, the other slices, and each comes back
// without its label. Neither affects the other kind.
func testForeignLabels(w *apiNamespace) {
	const proxyName = "service.kubernetes.io/service-proxy-name"
	w.createService("web")
	w.createSlice("web-1", "web", "10.1.0.1")
	w.follow()
	for _, label := range []string{proxyName, corev1.IsHeadlessService} {
		for _, value := range []string{"other", ""} {
			service := value == "" || label != proxyName
			slice := value == "" || label != corev1.IsHeadlessService
			w.updateService("web", func(s *corev1.Service) { setLabel(&s.ObjectMeta, label, value) })
			w.labelSlice("web-1", label, value)
			w.settle()
			if w.has("web") != service || (len(w.slices("web")) == 1) != slice {
				w.Errorf("with %s=%q: service there: %v, slices there: %v", label, value, w.has("web"), w.slices("web"))
			}
		}
	}
	if k := w.kind("services"); k.Relists != 0 {
		w.Errorf("the kind was listed again: %+v", k)
	}
}

// settle waits until all earlier changes of Services and slices have arrived, because the events of
// a kind stay in order.
func (w *apiNamespace) settle() {
	w.Helper()
	w.marks++
	mark := fmt.Sprintf("mark-%d", w.marks)
	w.createService(mark)
	w.createSlice(mark, mark, "10.1.0.200")
	w.await("a mark behind all changes", func() bool { return w.has(mark) && w.hasSlices(mark, mark) })
}

func testExternalName(w *apiNamespace) {
	w.createService("web")
	w.follow()
	w.updateService("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
	})
	w.await("a service without an address to go", func() bool { return !w.has("web") })
	w.updateService("web", func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeClusterIP, "" })
	w.await("a service with an address to be back", func() bool { return w.has("web") })
}

func testRecreation(w *apiNamespace) {
	w.createService("web")
	w.follow()
	w.deleteService("web")
	made := w.createService("web")
	w.await("the second service of that name", func() bool {
		service, _ := w.store.Service(w.name("web"))
		return service != nil && service.UID == string(made.UID) && service.ClusterIPs[0].String() == made.Spec.ClusterIP
	})
}

func testSliceMoves(w *apiNamespace) {
	w.createService("a")
	w.createService("b")
	w.createSlice("one", "a", "10.1.0.1")
	w.createSlice("two", "a", "10.1.0.2")
	w.follow()
	if got, want := w.slices("a"), []string{"one", "two"}; !slices.Equal(got, want) {
		w.Fatalf("slices: %v, want %v", got, want)
	}
	w.labelSlice("one", discoveryv1.LabelServiceName, "b")
	w.await("a slice to move", func() bool { return w.hasSlices("a", "two") && w.hasSlices("b", "one") })
}

func testPods(w *apiNamespace) {
	w.follow()
	create := func(name, on string) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		pods := w.client.CoreV1().Pods(w.namespace)
		made, err := pods.Create(w.ctx, pod, metav1.CreateOptions{})
		w.must(err)
		made.Status.PodIP, made.Status.PodIPs = "10.1.0.9", []corev1.PodIP{{IP: "10.1.0.9"}}
		made.Status.Phase = corev1.PodRunning
		_, err = pods.UpdateStatus(w.ctx, made, metav1.UpdateOptions{})
		w.must(err)
	}
	create("elsewhere", "worker-2")
	create("here", node)
	w.await("a pod of this node with its address", func() bool {
		pod := w.store.Pod(w.name("here"))
		return pod != nil && len(pod.Addrs) == 1
	})
	if pod := w.store.Pod(w.name("elsewhere")); pod != nil {
		w.Errorf("a pod of another node came: %+v", pod)
	}
	now := int64(0)
	w.must(w.client.CoreV1().Pods(w.namespace).Delete(w.ctx, "here", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	w.await("the pod to go", func() bool { return w.store.Pod(w.name("here")) == nil })
}

func testBulk(w *apiNamespace) {
	const count, half = 1000, 500
	make := func(from, to int) {
		w.each(from, to, func(i int) error {
			_, err := w.client.CoreV1().Services(w.namespace).Create(w.ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%04d", i)},
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	make(0, half)
	began := time.Now()
	w.follow()
	w.Logf("synced with %d services in %v", half, time.Since(began).Round(time.Millisecond))
	if found := w.count(); found != half {
		w.Errorf("listed %d services, want %d", found, half)
	}
	make(half, count)
	w.await("all services", func() bool { return w.count() == count })
	w.each(0, count, func(i int) error {
		return w.client.CoreV1().Services(w.namespace).Delete(w.ctx, fmt.Sprintf("s%04d", i), metav1.DeleteOptions{})
	})
	w.await("all services to go", func() bool { return w.count() == 0 })
}

// each calls do for all numbers, several at a time.
func (w *apiNamespace) each(from, to int, do func(int) error) {
	w.Helper()
	const workers = 8
	failed := make(chan error, workers)
	for worker := range workers {
		go func() {
			for i := from + worker; i < to; i += workers {
				if err := do(i); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range workers {
		w.must(<-failed)
	}
}

// count returns how many Services of the namespace the store has.
func (w *apiNamespace) count() int {
	count := 0
	for _, key := range w.store.Keys() {
		if key.Kind == model.KindService && key.Namespace == w.namespace {
			count++
		}
	}
	return count
}

// changed returns what became dirty in the namespace since the last call, without the name of the
// namespace.
func (w *apiNamespace) changed() []string {
	var changed []string
	for _, key := range w.store.TakeDirty() {
		if key.Namespace == w.namespace {
			changed = append(changed, strings.TrimPrefix(key.String(), w.namespace+"/"))
		}
	}
	return changed
}

func (w *apiNamespace) expectChanged(want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.changed()); diff != "" {
		w.Errorf("became dirty (-want +have):\n%s", diff)
	}
}
