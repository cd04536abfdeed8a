package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// podSlices are the PodSlices of a server whose kind comes and goes, and the process that writes them.
type podSlices struct {
	*apiNamespace
	definitions, all dynamic.ResourceInterface
	writes           atomic.Int64 // requests of the writer that change something
	end              func()       // of the writer
}

func newPodSlices(w *apiNamespace) *podSlices {
	w.Helper()
	client, err := dynamic.NewForConfig(w.server.Config())
	w.must(err)
	p := &podSlices{
		apiNamespace: w, all: client.Resource(source.AccelerationGroup().WithResource("podslices")),
		definitions: client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}),
	}
	w.Cleanup(p.uninstall)
	return p
}

// install installs the definition that the chart has.
func (p *podSlices) install() {
	p.Helper()
	text, err := os.ReadFile("../../../charts/fairlead/podslices.yaml")
	p.must(err)
	definition := &unstructured.Unstructured{}
	p.must(yaml.Unmarshal(text, &definition.Object))
	_, err = p.definitions.Create(p.ctx, definition, metav1.CreateOptions{})
	p.must(err)
	p.await("the kind to be served", func() bool {
		_, err := p.all.List(p.ctx, metav1.ListOptions{})
		return err == nil
	})
}

// uninstall removes the kind with all its objects, if it is there.
func (p *podSlices) uninstall() {
	p.Helper()
	const name = "podslices.fairlead.io"
	ctx := context.WithoutCancel(p.ctx)
	if err := p.definitions.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		p.must(err)
	}
	p.await("the definition to go", func() bool {
		_, err := p.definitions.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// counted counts requests that change something.
type counted struct {
	next  http.RoundTripper
	count *atomic.Int64
}

// RoundTrip sends a request.
func (c counted) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		c.count.Add(1)
	}
	return c.next.RoundTrip(request)
}

// write starts a writer, which goes on from what is there.
func (p *podSlices) write() {
	p.Helper()
	cfg := p.server.Config()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, &p.writes} })
	writer, err := NewPodSlices(Config{REST: cfg, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	p.must(err)
	ctx, cancel := context.WithCancel(p.ctx)
	var running sync.WaitGroup
	running.Go(func() { writer.Run(ctx) })
	p.end = func() { cancel(); running.Wait() }
	p.Cleanup(p.end)
}

// written returns the pods of the namespace that the slices hold.
func (p *podSlices) written() (names []string) {
	p.Helper()
	list, err := p.all.List(p.ctx, metav1.ListOptions{})
	p.must(err)
	for i := range list.Items {
		text, err := json.Marshal(list.Items[i].Object)
		p.must(err)
		slice := &source.PodSlice{}
		p.must(json.Unmarshal(text, slice))
		for _, shape := range slice.Spec.Shapes {
			for _, pod := range shape.Pods {
				if slice.Spec.Namespace == p.namespace {
					names = append(names, pod.Name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// testPodSlices has the pods of all nodes come by slices: from before there are any, over changes, a writer that
// takes over, slices that others break, and until after the kind is removed.
func testPodSlices(w *apiNamespace) {
	p := newPodSlices(w)
	w.createPod("first", "10.1.0.1", false)
	w.createPod("host", "192.0.2.1", true)
	w.sliced = true
	pods := w.followPolicies(&logBuffer{})
	w.source.NeedClusterPods(true)
	has := func(want ...string) func() bool {
		return func() bool { return slices.Equal(pods.names(w.namespace), want) }
	}
	says := func(want string) func() bool {
		return func() bool { return strings.Contains(w.source.ClusterPodsError(), want) }
	}
	w.await("the kind to be missed", says("knows no PodSlices"))
	p.install()
	w.await("what is there to be incomplete", says("has not written"))
	if pods.lists() > 0 {
		w.Error("the pods are said to be known, and nobody wrote them")
	}
	p.write()
	w.await("the first pod", has("first [10.1.0.1]"))
	w.await("no more complaint", func() bool { return w.source.ClusterPodsError() == "" })

	w.createPod("second", "10.1.0.2", false)
	w.await("a new pod", has("first [10.1.0.1]", "second [10.1.0.2]"))
	made, err := w.client.CoreV1().Pods(w.namespace).Get(w.ctx, "second", metav1.GetOptions{})
	w.must(err)
	if have, want := pods.get(w.name("second")), source.PolicyPod(made); !reflect.DeepEqual(have, want) {
		w.Errorf("by slices the pod is %+v, by itself %+v", have, want)
	}
	made.Labels["app"] = "other"
	_, err = w.client.CoreV1().Pods(w.namespace).Update(w.ctx, made, metav1.UpdateOptions{})
	w.must(err)
	w.await("its other labels", func() bool { return pods.get(w.name("second")).Labels["app"] == "other" })

	p.end()
	w.settleWrites(p)
	p.write()
	w.createPod("third", "10.1.0.3", false)
	w.await("a pod by another writer", has("first [10.1.0.1]", "second [10.1.0.2]", "third [10.1.0.3]"))

	// Who changes a slice is put right.
	name := w.namespace + ".0"
	_, err = p.all.Patch(w.ctx, name, types.MergePatchType, []byte(`{"spec":{"shapes":[{"labels":{"app":"evil"},"pods":[{"name":"first","ips":["10.1.0.1"]}]}]}}`), metav1.PatchOptions{})
	w.must(err)
	w.await("the slice to be put right", func() bool { return slices.Equal(p.written(), []string{"first", "second", "third"}) })
	w.await("the pods to be as they are", func() bool {
		return pods.get(w.name("first")).Labels["app"] == "first" && has("first [10.1.0.1]", "second [10.1.0.2]", "third [10.1.0.3]")()
	})
	w.must(p.all.Delete(w.ctx, name, metav1.DeleteOptions{}))
	w.await("a deleted slice to come again", func() bool { return slices.Equal(p.written(), []string{"first", "second", "third"}) })

	w.setStatus(must(w.client.CoreV1().Pods(w.namespace).Get(w.ctx, "first", metav1.GetOptions{})), corev1.PodSucceeded, "10.1.0.1")
	w.await("a pod that has ended to go", has("second [10.1.0.2]", "third [10.1.0.3]"))

	// The end of the kind is no word about pods.
	p.end()
	p.uninstall()
	w.await("the kind to be missed again", says("knows no PodSlices"))
	if !has("second [10.1.0.2]", "third [10.1.0.3]")() {
		w.Errorf("with the kind went pods: there are %q", pods.names(w.namespace))
	}
}

// settleWrites starts a writer while nothing changes, and checks that it writes nothing.
func (w *apiNamespace) settleWrites(p *podSlices) {
	w.Helper()
	before := p.writes.Load()
	p.write()
	// What it finds is right once it has written a change that came after it began. It also says that it is there.
	w.createPod("marker", "10.1.0.9", false)
	w.await("the writer to have compared everything", func() bool { return slices.Contains(p.written(), "marker") })
	if more := p.writes.Load() - before; more != 2 {
		w.Errorf("a writer that took over wrote %d slices for one change and its word that it is there", more)
	}
	w.must(w.client.CoreV1().Pods(w.namespace).Delete(w.ctx, "marker", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	w.await("the pod to go", func() bool { return !slices.Contains(p.written(), "marker") })
	p.end()
}

// testBadPodSlice checks that a slice that cannot be used changes nothing, is counted, and that the rest comes once
// it is right.
func testBadPodSlice(w *apiNamespace) {
	p := newPodSlices(w)
	p.install()
	put := func(name, spec string) {
		w.Helper()
		object := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal([]byte(`{apiVersion: fairlead.io/v1alpha1, kind: PodSlice, metadata: {name: "`+name+`"}, spec: `+spec+`}`), &object.Object))
		if was, err := p.all.Get(w.ctx, name, metav1.GetOptions{}); err == nil {
			object.SetResourceVersion(was.GetResourceVersion())
			_, err = p.all.Update(w.ctx, object, metav1.UpdateOptions{})
			w.must(err)
			return
		}
		_, err := p.all.Create(w.ctx, object, metav1.CreateOptions{})
		w.must(err)
	}
	slice := w.namespace + ".0"
	put(slice, `{namespace: `+w.namespace+`, shapes: [{labels: {app: a}, pods: [{name: one, ips: [10.1.0.1]}]}]}`)
	put("0", `{}`)
	w.sliced = true
	pods := w.followPolicies(&logBuffer{})
	w.source.NeedClusterPods(true)
	has := func(want string) func() bool {
		return func() bool { return slices.Equal(pods.names(w.namespace), []string{want}) }
	}
	w.await("the pod", has("one [10.1.0.1]"))
	put(slice, `{namespace: `+w.namespace+`, shapes: [{pods: [{name: one, ips: [10.1.0.300]}]}]}`)
	w.await("the slice to be refused", func() bool {
		return strings.Contains(w.source.ClusterPodsError(), "10.1.0.300") && w.kind("podslices").Failures > 0
	})
	if pod := pods.get(w.name("one")); !has("one [10.1.0.1]")() || pod.Labels["app"] != "a" {
		w.Errorf("a slice that cannot be used made it %+v", pod)
	}
	put(slice, `{namespace: `+w.namespace+`, shapes: [{pods: [{name: one, ips: [10.1.0.2]}]}]}`)
	w.await("the pod as it is now", has("one [10.1.0.2]"))
	// The list that brought it does not prove that events can be decoded. The next one does.
	put(slice, `{namespace: `+w.namespace+`, shapes: [{pods: [{name: one, ips: [10.1.0.3]}]}]}`)
	w.await("the next change", has("one [10.1.0.3]"))
	w.await("no more complaint", func() bool { return w.source.ClusterPodsError() == "" })
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// get returns a pod as it was delivered, or an empty one.
func (r *received) get(name model.Name) *model.PolicyPod {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pod := r.pods[name]; pod != nil {
		return pod
	}
	return &model.PolicyPod{}
}
