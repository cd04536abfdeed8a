package listwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// clients returns client-go clients for the two API groups that only use protobuf.
func clients(t *testing.T, server *Server) (core, discovery rest.Interface) {
	t.Helper()
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	scheme := kruntime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	client := func(path string, group schema.GroupVersion) rest.Interface {
		c, err := rest.RESTClientFor(&rest.Config{Host: web.URL, APIPath: path, QPS: -1, ContentConfig: rest.ContentConfig{
			GroupVersion: &group, ContentType: contentType, AcceptContentTypes: contentType,
			NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return client("/api", corev1.SchemeGroupVersion), client("/apis", discoveryv1.SchemeGroupVersion)
}

func newServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func small() Fleet { return Fleet{Services: 10, Endpoints: 3, Nodes: 4, Namespaces: 2} }

func list[L kruntime.Object](t *testing.T, c rest.Interface, resource string, into L, options metav1.ListOptions) error {
	t.Helper()
	return c.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Do(t.Context()).Into(into)
}

// Every kind arrives complete, with its type, and in the right number.
func TestKinds(t *testing.T) {
	fleet := small()
	fleet.FirstPod = 1 << 23
	core, discovery := clients(t, newServer(t, Config{Fleet: fleet}))
	tests := []struct {
		client   rest.Interface
		resource string
		into     kruntime.Object
		count    int
	}{
		{core, "services", &corev1.ServiceList{}, 10},
		{discovery, "endpointslices", &discoveryv1.EndpointSliceList{}, 10},
		{core, "nodes", &corev1.NodeList{}, 4},
		{core, "namespaces", &corev1.NamespaceList{}, 2},
		{core, "pods", &corev1.PodList{}, 30},
	}
	for _, tt := range tests {
		if err := list(t, tt.client, tt.resource, tt.into, metav1.ListOptions{}); err != nil {
			t.Errorf("%s: %v", tt.resource, err)
			continue
		}
		items, err := meta.ExtractList(tt.into)
		if err != nil || len(items) != tt.count {
			t.Errorf("%s: have %d and %v, want %d", tt.resource, len(items), err, tt.count)
			continue
		}
		names := map[string]bool{}
		for _, item := range items {
			about, err := meta.Accessor(item)
			if err != nil {
				t.Fatal(err)
			}
			names[about.GetNamespace()+"/"+about.GetName()+about.GetResourceVersion()+string(about.GetUID())] = true
		}
		if len(names) != tt.count {
			t.Errorf("%s: some objects have the same name", tt.resource)
		}
	}
	var services corev1.ServiceList // with kube-proxy's field selector
	if err := list(t, core, "services", &services, metav1.ListOptions{FieldSelector: "spec.clusterIP!=None"}); err != nil ||
		len(services.Items) != 10 || services.Items[4].Spec.ClusterIP != fleet.ServiceAddr(4).String() {
		t.Errorf("services with an address: have %d and %v", len(services.Items), err)
	}
	var slices discoveryv1.EndpointSliceList
	if err := list(t, discovery, "endpointslices", &slices, metav1.ListOptions{FieldSelector: "metadata.name=service-000004-x7k2p"}); err != nil {
		t.Fatal(err)
	}
	s := slices.Items[0]
	var addresses []string
	for _, e := range s.Endpoints {
		addresses = append(addresses, e.Addresses[0]+" "+*e.NodeName)
	}
	want := []string{"10.128.0.12 node-0", "10.128.0.13 node-1", "10.128.0.14 node-2"}
	if fleet.PodAddr(12).String() != "10.128.0.12" {
		t.Errorf("the address of pod 12 is %s", fleet.PodAddr(12))
	}
	if diff := cmp.Diff(want, addresses); diff != "" || s.Labels[discoveryv1.LabelServiceName] != "service-000004" {
		t.Errorf("slice of service 4 with the labels %v (-want +got):\n%s", s.Labels, diff)
	}
}

// Services with node ports have both protocols, and lead to the same port of the same pods.
func TestNodePorts(t *testing.T) {
	fleet := small()
	fleet.NodePort = 30100
	core, discovery := clients(t, newServer(t, Config{Fleet: fleet}))
	var services corev1.ServiceList
	var slices discoveryv1.EndpointSliceList
	if err := errors.Join(list(t, core, "services", &services, metav1.ListOptions{}),
		list(t, discovery, "endpointslices", &slices, metav1.ListOptions{})); err != nil {
		t.Fatal(err)
	}
	service, slice := services.Items[7], slices.Items[7]
	if service.Spec.Type != corev1.ServiceTypeNodePort || len(service.Spec.Ports) != 2 || len(slice.Ports) != 2 {
		t.Fatalf("service 7 is %+v and has %d ports in its slice", service.Spec, len(slice.Ports))
	}
	for i, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		at, to := service.Spec.Ports[i], slice.Ports[i]
		if at.NodePort != 30107 || at.Protocol != protocol || *to.Protocol != protocol || *to.Name != at.Name || *to.Port != 8080 {
			t.Errorf("%s of service 7: %+v leads to %s", protocol, at, to.String())
		}
	}
}

// All pages show the same revision, whatever changes between them.
func TestPages(t *testing.T) {
	server := newServer(t, Config{Fleet: small()})
	core, _ := clients(t, server)
	var names []string
	var revision string
	options := metav1.ListOptions{Limit: 4}
	for page := 0; ; page++ {
		var services corev1.ServiceList
		if err := list(t, core, "services", &services, options); err != nil {
			t.Fatal(err)
		}
		if page == 0 {
			revision = services.ResourceVersion
		}
		if services.ResourceVersion != revision || len(services.Items) > 4 {
			t.Errorf("page %d has %d objects of the revision %s, want 4 of %s", page, len(services.Items), services.ResourceVersion, revision)
		}
		for _, s := range services.Items {
			names = append(names, fmt.Sprintf("%s:%d", s.Name, s.Spec.Ports[0].Port))
		}
		if options.Continue = services.Continue; options.Continue == "" {
			break
		}
		for _, err := range []error{server.Change(Services, 9), server.DeleteService(4 + page)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := server.AddService(); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for n := range 10 {
		want = append(want, fmt.Sprintf("service-%06d:80", n))
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	var now corev1.ServiceList
	if err := list(t, core, "services", &now, metav1.ListOptions{}); err != nil || len(now.Items) != 10 {
		t.Errorf("afterwards: %d services and %v, want 10", len(now.Items), err)
	}

	options.Continue = continueToken(server.Revision(), 4)
	server.Expire()
	if err := list(t, core, "services", &now, options); !apierrors.IsResourceExpired(err) {
		t.Errorf("a page of a forgotten revision: have error %v, want that it expired", err)
	}
}

func TestRefusals(t *testing.T) {
	server := newServer(t, Config{Fleet: small()})
	ask := func(method, path, accept string) (int, string) {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader("an event"))
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	tests := []struct {
		method, path, accept string
		code                 int
		body                 string
	}{
		{"GET", "/api/v1/services", "application/json", http.StatusNotAcceptable, "speaks only"},
		{"GET", "/api/v1/services?limit=many", contentType, http.StatusBadRequest, "limit"},
		{"GET", "/api/v1/services?resourceVersion=-1", contentType, http.StatusBadRequest, "resourceVersion"},
		{"GET", "/api/v1/services?continue=abc", contentType, http.StatusBadRequest, "not from here"},
		{"GET", "/api/v1/services?labelSelector=a+b", contentType, http.StatusBadRequest, "BadRequest"},
		{"GET", "/api/v1/services?fieldSelector=spec.nodeName%3Dx", contentType, http.StatusBadRequest, "not understood"},
		{"GET", "/api/v1/services?resourceVersion=99999", contentType, http.StatusGone, "Expired"},
		{"GET", "/api/v1/secrets", contentType, http.StatusNotFound, ""},
		{"DELETE", "/api/v1/services", contentType, http.StatusNotFound, ""},
		{"POST", "/api/v1/namespaces/default/events", contentType, http.StatusCreated, "an event"},
		{"GET", "/readyz", "", http.StatusOK, "ok"},
		{"POST", "/control/change?number=3", "", http.StatusOK, `{"resourceVersion":1058}`},
		{"POST", "/control/add", "", http.StatusOK, `{"resourceVersion":1063}`},
		{"POST", "/control/delete?number=10", "", http.StatusOK, `{"resourceVersion":1068}`},
		{"POST", "/control/delete?number=10", "", http.StatusBadRequest, "there is no Service with the number 10"},
		{"POST", "/control/change?number=x", "", http.StatusBadRequest, "invalid syntax"},
		{"POST", "/control/stop", "", http.StatusBadRequest, "none of change, add"},
		{"POST", "/control/expire", "", http.StatusOK, `{"resourceVersion":1069}`},
	}
	for _, tt := range tests {
		code, body := ask(tt.method, tt.path, tt.accept)
		if code != tt.code || !strings.Contains(body, tt.body) {
			t.Errorf("%s %s: have %d %q, want %d with %q", tt.method, tt.path, code, body, tt.code, tt.body)
		}
	}
}

func TestFleetRefused(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Fleet.Services = -1 }, func(c *Config) { c.Fleet.Services = maxServices + 1 },
		func(c *Config) { c.Fleet.Endpoints = 0 }, func(c *Config) { c.Fleet.Endpoints = 101 },
		func(c *Config) { c.Fleet.Services, c.Fleet.Endpoints = 500_000, 100 },
		func(c *Config) { c.Fleet.Nodes = 0 }, func(c *Config) { c.Fleet.Nodes = maxNodes + 1 }, func(c *Config) { c.Fleet.Namespaces = 0 },
		func(c *Config) { c.Fleet.NodePort = 8080 }, func(c *Config) { c.Fleet.NodePort = 32767 },
		func(c *Config) { c.Memory = -1 }, func(c *Config) { c.Bookmarks = -1 },
	} {
		cfg := Config{Fleet: small()}
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestListen(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:80", "localhost:0", "here"} {
		if listener, err := Listen(t.Context(), address); err == nil {
			t.Errorf("listens on %s", listener.Addr())
		}
	}
	listener, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	server := newServer(t, Config{Fleet: small()})
	done := make(chan error)
	go func() { done <- server.Serve(ctx, listener) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/api/v1/nodes?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", contentType)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
	// The open watch ends too.
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
}

func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(t, Config{Fleet: small()})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+time.Microsecond)
		defer cancel()
		done, err := server.Run(ctx, Churn{Changes: 100, Adds: 5, Deletes: 5})
		if want := (Done{Changes: 200, Adds: 10, Deletes: 10}); err != nil || done != want {
			t.Errorf("have %+v and %v, want %+v", done, err, want)
		}
		view, _, err := server.state.snapshot(Slices, 0)
		if err != nil {
			t.Fatal(err)
		}
		living, changed := 0, 0
		for n := range view.count {
			if s := view.at(n); !s.gone {
				living++
			}
			changed += int(view.at(n).generation)
		}
		if living != 10 || changed != 200 || view.count != 20 {
			t.Errorf("%d of %d slices live, which changed %d times in all, want 10 of 20 and 200", living, view.count, changed)
		}
	})
}

// The server's memory does not grow with the cluster.
func TestFrugal(t *testing.T) {
	live := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := live()
	server := newServer(t, Config{Fleet: Fleet{Services: 100_000, Endpoints: 10, Nodes: 1000, Namespaces: 100}})
	for n := range 10_000 {
		if err := server.Change(Slices, n); err != nil {
			t.Fatal(err)
		}
	}
	kept := live() - before
	runtime.KeepAlive(server)
	t.Logf("%.1f MiB are kept for 100000 services with 10 endpoints, 10000 of which changed", float64(kept)/(1<<20))
	if kept > 16<<20 {
		t.Errorf("%d bytes are kept, want less than 16 MiB", kept)
	}
}
