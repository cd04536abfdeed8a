package addresses

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"fairlead.io/fairlead/test/apiserver"
)

// fakeRouter is a routing table in memory.
type fakeRouter struct {
	mu    sync.Mutex
	table routes
	fail  error         // returned by the next call instead of applying
	moved chan struct{} // closed at the next change

	applied int // successful calls of apply
}

func newFakeRouter() *fakeRouter { return &fakeRouter{moved: make(chan struct{})} }

func (r *fakeRouter) apply(want routes) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fail; err != nil {
		r.fail = nil
		return err
	}
	r.table = want
	r.applied++
	close(r.moved)
	r.moved = make(chan struct{})
	return nil
}

// await waits until the route to addr has the given hops, separated by spaces.
func (r *fakeRouter) await(ctx context.Context, t *testing.T, addr netip.Addr, want string) {
	t.Helper()
	for {
		r.mu.Lock()
		var hops []string
		for _, hop := range r.table[addr] {
			hops = append(hops, hop.String())
		}
		moved := r.moved
		r.mu.Unlock()
		if strings.Join(hops, " ") == want {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			t.Fatalf("route to %v: by %q, want %q", addr, hops, want)
		}
	}
}

// controllerWithAPI is a controller running against a real API server.
type controllerWithAPI struct {
	t      *testing.T
	ctx    context.Context
	client kubernetes.Interface
	router *fakeRouter
}

func newControllerWithAPI(t *testing.T) *controllerWithAPI {
	server := apiserver.Start(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return &controllerWithAPI{t, ctx, server.Client(), newFakeRouter()}
}

// start starts a controller; the returned function stops it.
func (w *controllerWithAPI) start() (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	c := newController(w.client, small(), w.router, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- c.run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(stop)
	return stop
}

func (w *controllerWithAPI) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// create creates a Service of type LoadBalancer.
func (w *controllerWithAPI) create(name string, change func(*corev1.Service)) *corev1.Service {
	w.t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}
	if change != nil {
		change(s)
	}
	s, err := w.client.CoreV1().Services("default").Create(w.ctx, s, metav1.CreateOptions{})
	w.must(err)
	return s
}

// update changes a Service.
func (w *controllerWithAPI) update(name string, change func(*corev1.Service)) {
	w.t.Helper()
	for {
		s, err := w.client.CoreV1().Services("default").Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		change(s)
		if _, err = w.client.CoreV1().Services("default").Update(w.ctx, s, metav1.UpdateOptions{}); err == nil {
			return
		}
		if !strings.Contains(err.Error(), "the object has been modified") {
			w.t.Fatal(err)
		}
	}
}

// follow waits until done returns true for the Service, which is nil once it is deleted.
func (w *controllerWithAPI) follow(name string, done func(*corev1.Service) bool) {
	w.t.Helper()
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	list, err := w.client.CoreV1().Services("default").List(w.ctx, options)
	w.must(err)
	var last *corev1.Service
	if len(list.Items) > 0 {
		last = &list.Items[0]
	}
	options.ResourceVersion = list.ResourceVersion
	watcher, err := w.client.CoreV1().Services("default").Watch(w.ctx, options)
	w.must(err)
	defer watcher.Stop()
	for !done(last) {
		select {
		case event := <-watcher.ResultChan():
			s, ok := event.Object.(*corev1.Service)
			if !ok {
				w.t.Fatalf("watch service %s: %v", name, event)
			}
			if last = s; event.Type == watch.Deleted {
				last = nil
			}
		case <-w.ctx.Done():
			w.t.Fatalf("service %s did not reach the wanted state: %+v", name, last)
		}
	}
}

// await waits until the status of a Service has the given addresses, separated by spaces, and
// returns them.
func (w *controllerWithAPI) await(name, want string) (addrs []netip.Addr) {
	w.t.Helper()
	w.follow(name, func(s *corev1.Service) bool {
		if s == nil {
			return false
		}
		var ips []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			if ptr.Deref(i.IPMode, "") != corev1.LoadBalancerIPModeVIP {
				w.t.Errorf("service %s: mode %v", name, i.IPMode)
			}
			ips = append(ips, i.IP)
		}
		addrs = statusAddrs(s)
		return strings.Join(ips, " ") == want
	})
	return addrs
}

// awaitFinalizers waits until a Service has the given finalizers, separated by spaces.
func (w *controllerWithAPI) awaitFinalizers(name, want string) {
	w.t.Helper()
	w.follow(name, func(s *corev1.Service) bool { return s != nil && strings.Join(s.Finalizers, " ") == want })
}

func dual(s *corev1.Service) { s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack) }

func (w *controllerWithAPI) createNodes(names ...string) {
	w.t.Helper()
	for i, name := range names {
		n := node(name, corev1.ConditionTrue, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}).String())
		n, err := w.client.CoreV1().Nodes().Create(w.ctx, n, metav1.CreateOptions{})
		w.must(err)
		n.Status = node(name, corev1.ConditionTrue, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}).String()).Status
		_, err = w.client.CoreV1().Nodes().UpdateStatus(w.ctx, n, metav1.UpdateOptions{})
		w.must(err)
	}
}

func TestLifeOfAnAddress(t *testing.T) {
	w := newControllerWithAPI(t)
	w.createNodes("n1", "n2")
	w.start()
	w.create("a", nil)
	first := w.await("a", "10.9.0.1")[0]
	w.router.await(w.ctx, t, first, "10.0.0.1 10.0.0.2")
	w.awaitFinalizers("a", finalizer)
	w.create("b", dual)
	w.await("b", "10.9.0.2 fd09::1")

	// With another type, the Service no longer gets an address, and the address is free again.
	w.update("a", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		s.Spec.Ports[0].NodePort = 0
	})
	w.await("a", "")
	w.router.await(w.ctx, t, first, "")
	w.awaitFinalizers("a", "")
	w.create("c", nil)
	w.await("c", "10.9.0.1")
	w.update("a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
	w.await("a", "10.9.0.3")
	w.awaitFinalizers("a", finalizer)

	w.must(w.client.CoreV1().Services("default").Delete(w.ctx, "c", metav1.DeleteOptions{}))
	w.router.await(w.ctx, t, first, "")
	w.create("d", nil)
	w.await("d", "10.9.0.1")

	// A family is added, and one is removed.
	w.update("a", dual)
	w.await("a", "10.9.0.3 fd09::2")
	w.update("b", func(s *corev1.Service) {
		s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
		s.Spec.IPFamilies, s.Spec.ClusterIPs = s.Spec.IPFamilies[:1], s.Spec.ClusterIPs[:1]
	})
	w.await("b", "10.9.0.2")
}

func TestLocalPolicyFollowsEndpoints(t *testing.T) {
	w := newControllerWithAPI(t)
	w.createNodes("n1", "n2", "n3")
	w.start()
	w.create("a", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	addr := w.await("a", "10.9.0.1")[0]
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "a-1", Labels: map[string]string{discoveryv1.LabelServiceName: "a"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}},
	}
	on := func(node string) discoveryv1.Endpoint {
		e := at(node, "rs")
		e.Addresses = []string{"10.1.0.1"}
		return e
	}
	slice.Endpoints = []discoveryv1.Endpoint{on("n2")}
	slice, err := w.client.DiscoveryV1().EndpointSlices("default").Create(w.ctx, slice, metav1.CreateOptions{})
	w.must(err)
	w.router.await(w.ctx, t, addr, "10.0.0.2")
	slice.Endpoints = []discoveryv1.Endpoint{on("n3"), on("n1")}
	_, err = w.client.DiscoveryV1().EndpointSlices("default").Update(w.ctx, slice, metav1.UpdateOptions{})
	w.must(err)
	w.router.await(w.ctx, t, addr, "10.0.0.1 10.0.0.3")
	w.must(w.client.CoreV1().Nodes().Delete(w.ctx, "n1", metav1.DeleteOptions{}))
	w.router.await(w.ctx, t, addr, "10.0.0.3")
	w.update("a", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster })
	w.router.await(w.ctx, t, addr, "10.0.0.2 10.0.0.3")
}

func TestRestartGoesOn(t *testing.T) {
	w := newControllerWithAPI(t)
	w.createNodes("n1")
	stop := w.start()
	w.create("a", nil)
	w.await("a", "10.9.0.1")
	w.create("b", func(s *corev1.Service) { s.Finalizers = []string{"example.com/another"} })
	kept := w.await("b", "10.9.0.2")[0]
	w.awaitFinalizers("a", finalizer)
	w.awaitFinalizers("b", "example.com/another "+finalizer)
	stop()
	// While no controller runs, a Service is deleted, one is created, and one has an unrelated
	// address in its status.
	w.must(w.client.CoreV1().Services("default").Delete(w.ctx, "a", metav1.DeleteOptions{}))
	w.create("c", nil)
	class := w.create("class", func(s *corev1.Service) {
		s.Spec.LoadBalancerClass, s.Finalizers = ptr.To("example.com/other"), []string{finalizer}
	})
	class.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.9.0.6"}}
	_, err := w.client.CoreV1().Services("default").UpdateStatus(w.ctx, class, metav1.UpdateOptions{})
	w.must(err)
	w.router.mu.Lock()
	w.router.fail = context.DeadlineExceeded // the first write of routes fails
	w.router.applied = 0
	w.router.mu.Unlock()
	w.awaitFinalizers("a", finalizer) // it waits for a controller to remove its routes
	w.start()
	w.follow("a", func(s *corev1.Service) bool { return s == nil })
	w.router.mu.Lock()
	if w.router.applied == 0 {
		t.Error("a Service was released before its routes were removed")
	}
	w.router.mu.Unlock()
	w.await("c", "10.9.0.1")
	w.await("b", "10.9.0.2")
	w.router.await(w.ctx, t, kept, "10.0.0.1")
	// The change of b is seen after everything before it has been handled.
	w.update("b", dual)
	w.await("b", "10.9.0.2 fd09::1")
	s, err := w.client.CoreV1().Services("default").Get(w.ctx, "class", metav1.GetOptions{})
	w.must(err)
	if !slices.Equal(s.Finalizers, []string{finalizer}) {
		t.Errorf("the controller changed the finalizers of a Service of another class: %q", s.Finalizers)
	}
	if len(s.Status.LoadBalancer.Ingress) != 1 || s.Status.LoadBalancer.Ingress[0].IP != "10.9.0.6" {
		t.Errorf("the controller changed the status of a Service of another class: %+v", s.Status.LoadBalancer)
	}
}
