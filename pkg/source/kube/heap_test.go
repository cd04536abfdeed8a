package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
)

// heapLimit is how many bytes the agent may keep for a Service with a slice of one endpoint.
const heapLimit = 1500

// TestHeap measures the live heap while a Source follows many Services: the store and whatever the
// client keeps. The server answers in the encoding of a real one, but makes up the objects as it
// goes.
func TestHeap(t *testing.T) {
	const count = 20_000
	server := httptest.NewServer(newInventor(t, count))
	t.Cleanup(server.Close)
	store := model.NewStore(node)
	source, err := New(Config{
		REST: &rest.Config{Host: server.URL}, NodeName: node, Store: store, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	before := liveHeap()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = source.Run(ctx)
	}()
	began := time.Now()
	select {
	case <-store.Synced():
	case <-time.After(time.Minute):
		t.Fatalf("not synced: %+v", source.Status())
	}
	took := time.Since(began)
	if got := len(store.TakeDirty()); got != count {
		t.Fatalf("%d Services arrived, want %d", got, count)
	}
	each := (int64(liveHeap()) - int64(before)) / count
	runtime.KeepAlive(source)
	cancel()
	<-ended
	t.Logf("%d bytes for each of %d Services with a slice of one endpoint; synced in %v", each, count, took.Round(time.Millisecond))
	if each > heapLimit {
		t.Errorf("%d bytes for each Service, want at most %d", each, heapLimit)
	}
}

// liveHeap returns the bytes that are reachable. The second collection frees what finalizers and
// pools held.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// inventor is a server with so many Services and slices, and nothing else.
type inventor struct {
	t      *testing.T
	count  int
	codecs serializer.CodecFactory
	info   kruntime.SerializerInfo
}

func newInventor(t *testing.T, count int) *inventor {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	info, ok := kruntime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), kruntime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("there is no protobuf")
	}
	return &inventor{t: t, count: count, codecs: codecs, info: info}
}

// ServeHTTP streams the objects of a kind, and then says that they are complete.
func (i *inventor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", kruntime.ContentTypeProtobuf+";stream=watch")
	out := streaming.NewEncoder(i.info.StreamSerializer.Framer.NewFrameWriter(w),
		i.codecs.EncoderForVersion(i.info.StreamSerializer.Serializer, schema.GroupVersion{Version: "v1"}))
	send := func(kind string, object kruntime.Object) {
		encoder := i.codecs.EncoderForVersion(i.info.Serializer, schema.GroupVersions{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion})
		raw, err := kruntime.Encode(encoder, object)
		if err == nil {
			err = out.Encode(&metav1.WatchEvent{Type: kind, Object: kruntime.RawExtension{Raw: raw}})
		}
		if err != nil && r.Context().Err() == nil {
			i.t.Errorf("send %T: %v", object, err)
		}
	}
	end := metav1.ObjectMeta{ResourceVersion: "1000000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	switch r.URL.Path {
	case "/api/v1/services":
		for n := range i.count {
			send("ADDED", inventedService(n))
		}
		send("BOOKMARK", &corev1.Service{ObjectMeta: end})
	case "/apis/discovery.k8s.io/v1/endpointslices":
		for n := range i.count {
			send("ADDED", inventedSlice(n))
		}
		send("BOOKMARK", &discoveryv1.EndpointSlice{ObjectMeta: end})
	case "/api/v1/nodes":
		send("BOOKMARK", &corev1.Node{ObjectMeta: end})
	case "/api/v1/namespaces":
		send("BOOKMARK", &corev1.Namespace{ObjectMeta: end})
	case "/api/v1/pods":
		send("BOOKMARK", &corev1.Pod{ObjectMeta: end})
	default:
		i.t.Errorf("asked for %s", r.URL.Path)
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// invented returns metadata as a controller and a user leave it on an object, most of which a proxy
// does not need.
func invented(n int, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: fmt.Sprintf("namespace-%d", n%50), Name: name, ResourceVersion: fmt.Sprint(1000 + n),
		UID:               types.UID(fmt.Sprintf("6a1d2f4e-0000-4000-8000-%012d", n)),
		CreationTimestamp: metav1.Unix(1_700_000_000+int64(n), 0),
		Labels:            map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "Helm"},
		Annotations:       map[string]string{"kubectl.kubernetes.io/last-applied-configuration": fmt.Sprintf("%01000d", n)},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kubectl", Operation: "Apply", APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:spec":{"f:x%0500d":{}}}`, n)),
		}},
	}
}

func inventedService(n int) *corev1.Service {
	addr := fmt.Sprintf("10.96.%d.%d", n/250, 1+n%250)
	return &corev1.Service{
		ObjectMeta: invented(n, fmt.Sprintf("service-%05d", n)),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: addr, ClusterIPs: []string{addr}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
			Selector: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("service-%05d", n)},
		},
	}
}

func inventedSlice(n int) *discoveryv1.EndpointSlice {
	service := fmt.Sprintf("service-%05d", n)
	name, port, protocol, yes, worker := "http", int32(8080), corev1.ProtocolTCP, true, fmt.Sprintf("worker-%d", n%100)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  invented(n, service+"-x7k2p"),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{fmt.Sprintf("10.244.%d.%d", n/250, 1+n%250)}, NodeName: &worker,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: service + "-5d8f7c9b6-abcde", UID: types.UID(fmt.Sprint(n))},
		}},
	}
	s.Labels[discoveryv1.LabelServiceName] = service
	return s
}
