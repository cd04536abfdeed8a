package kube

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/apiserver"
)

const (
	node    = "worker-1"
	patient = time.Minute // for what takes milliseconds on an idle machine
)

// apiNamespace is a namespace of the server, and a Source that follows the server.
type apiNamespace struct {
	*testing.T
	ctx       context.Context
	server    *apiserver.Server
	client    kubernetes.Interface
	namespace string
	store     *model.Store
	source    *Source
	line      *line
	marks     int          // made by settle
	sliced    bool         // the pods of all nodes are read from slices
	forgets   *atomic.Bool // the server does not know ClusterNetworkPolicies
}

// newAPINamespace creates the namespace and a Source, which is also given the other servers; follow starts
// it.
func newAPINamespace(t *testing.T, server *apiserver.Server, others ...*apiserver.Server) *apiNamespace {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &apiNamespace{T: t, ctx: ctx, server: server, client: server.Client(), store: model.NewStore(node), line: newLine()}
	namespace, err := w.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	w.must(err)
	w.namespace = namespace.Name
	cfg := server.Config()
	cfg.Dial, cfg.WrapTransport = w.line.dial, w.line.wrap
	var servers []string
	for _, other := range others {
		servers = append(servers, strings.TrimPrefix(other.Config().Host, "https://"))
	}
	w.source, err = New(Config{
		REST: cfg, Servers: servers, NodeName: node, Version: "test", Store: w.store, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	w.must(err)
	return w
}

func (w *apiNamespace) follow() {
	w.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.source.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("Run: %v", err)
		}
	})
	w.await("everything to be synced", func() bool {
		select {
		case <-w.store.Synced():
			return true
		default:
			return false
		}
	})
}

func (w *apiNamespace) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *apiNamespace) await(what string, done func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patient); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("waited %v for %s; the source: %+v", patient, what, w.source.Status())
		}
	}
}

func (w *apiNamespace) name(name string) model.Name {
	return model.Name{Namespace: w.namespace, Name: name}
}

// has reports whether the store has the Service; slices returns the names of its slices.
func (w *apiNamespace) has(name string) bool {
	service, _ := w.store.Service(w.name(name))
	return service != nil
}

func (w *apiNamespace) slices(name string) []string {
	_, list := w.store.Service(w.name(name))
	var names []string
	for _, slice := range list {
		names = append(names, slice.Name.Name)
	}
	return names
}

func (w *apiNamespace) hasSlices(name string, want ...string) bool {
	return slices.Equal(w.slices(name), want)
}

// kind returns the status of one kind.
func (w *apiNamespace) kind(name string) KindStatus {
	for _, k := range w.source.Status().Kinds {
		if k.Kind == name {
			return k
		}
	}
	w.Fatalf("no status of %s", name)
	return KindStatus{}
}

func (w *apiNamespace) createService(name string, changes ...func(*corev1.Service)) *corev1.Service {
	w.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, change := range changes {
		change(service)
	}
	made, err := w.client.CoreV1().Services(w.namespace).Create(w.ctx, service, metav1.CreateOptions{})
	w.must(err)
	return made
}

func (w *apiNamespace) updateService(name string, change func(*corev1.Service)) {
	w.Helper()
	services := w.client.CoreV1().Services(w.namespace)
	service, err := services.Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	change(service)
	_, err = services.Update(w.ctx, service, metav1.UpdateOptions{})
	w.must(err)
}

func (w *apiNamespace) deleteService(name string) {
	w.Helper()
	w.must(w.client.CoreV1().Services(w.namespace).Delete(w.ctx, name, metav1.DeleteOptions{}))
}

func (w *apiNamespace) createSlice(name, service string, addrs ...string) {
	w.Helper()
	port, protocol := int32(8080), corev1.ProtocolTCP
	unnamed := ""
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &unnamed, Port: &port, Protocol: &protocol}},
	}
	for _, addr := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
	}
	_, err := w.client.DiscoveryV1().EndpointSlices(w.namespace).Create(w.ctx, slice, metav1.CreateOptions{})
	w.must(err)
}

func (w *apiNamespace) labelSlice(name, label, value string) {
	w.Helper()
	all := w.client.DiscoveryV1().EndpointSlices(w.namespace)
	slice, err := all.Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	setLabel(&slice.ObjectMeta, label, value)
	_, err = all.Update(w.ctx, slice, metav1.UpdateOptions{})
	w.must(err)
}

// setLabel sets a label, or removes it if the value is empty.
func setLabel(about *metav1.ObjectMeta, label, value string) {
	if about.Labels == nil {
		about.Labels = map[string]string{}
	}
	about.Labels[label] = value
	if value == "" {
		delete(about.Labels, label)
	}
}
