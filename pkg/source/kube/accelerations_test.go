package kube

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
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

// testAccelerations creates, changes and deletes policies, also together with their
// CustomResourceDefinition, with only the permissions of the manifest. That a cluster lacks the
// kind is logged once.
func testAccelerations(w *apiNamespace) {
	w.asAgent()
	definition := w.readAccelerations()
	client, err := dynamic.NewForConfig(w.server.Config())
	w.must(err)
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	policies := client.Resource(source.AccelerationGroup().WithResource("socketaccelerations")).Namespace(w.namespace)

	log := &logBuffer{}
	cfg := w.server.Config()
	cfg.Impersonate.UserName = "system:serviceaccount:kube-system:fairlead"
	w.source, err = New(Config{REST: cfg, NodeName: node, Accelerations: true, Store: w.store, Log: slog.New(slog.NewTextHandler(log, nil))})
	w.must(err)
	followed, ok := w.source.kinds[len(w.source.kinds)-1].(*kind[*source.SocketAcceleration, model.Acceleration])
	if !ok {
		w.Fatalf("the last kind is %T", w.source.kinds[len(w.source.kinds)-1])
	}
	followed.lacking = 100 * time.Millisecond
	w.follow()
	lacking := func() bool { return w.kind("socketaccelerations").Lacking }
	w.await("the kind to be missed", lacking)
	time.Sleep(10 * followed.lacking)
	if k := w.kind("socketaccelerations"); !k.Synced || k.Error != "" || k.Failures != 0 || log.lines("CustomResourceDefinition is not installed", "socketaccelerations") != 1 || log.lines("level=ERROR") != 0 {
		w.Errorf("without the kind: %+v, log:\n%s", k, log.text.String())
	}
	if list, all := w.store.Accelerations(); len(list) != 0 || !all {
		w.Errorf("without the kind: %v, all of them: %t", list, all)
	}

	install := func() {
		w.Helper()
		_, err := definitions.Create(w.ctx, definition, metav1.CreateOptions{})
		w.must(err)
		w.await("the kind to be found", func() bool { return !lacking() })
	}
	install()
	create := func(name string) *unstructured.Unstructured {
		w.Helper()
		object := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal([]byte(`{apiVersion: fairlead.io/v1alpha1, kind: SocketAcceleration, metadata: {name: `+name+`}, spec: {
			from: [{podSelector: {matchLabels: {app: web}}}], to: [{node: true}], ports: [8080]}}`), &object.Object))
		made, err := policies.Create(w.ctx, object, metav1.CreateOptions{})
		w.must(err)
		return made
	}
	made := create("web")
	w.await("a policy", func() bool { list, _ := w.store.Accelerations(); return len(list) == 1 })
	list, _ := w.store.Accelerations()
	want := &model.Acceleration{
		Name: w.name("web"), UID: string(made.GetUID()), Created: made.GetCreationTimestamp().Unix(), To: []model.Peer{{Node: true}}, Ports: []uint16{8080},
		From: []model.Peer{{Pods: model.Selector{{Label: "app", Operator: model.In, Values: []string{"web"}}}}},
	}
	if diff := cmp.Diff(want, list[0]); diff != "" {
		w.Errorf("the policy (-want +have):\n%s", diff)
	}
	_, err = policies.Patch(w.ctx, "web", types.MergePatchType, []byte(`{"spec":{"ports":[80]}}`), metav1.PatchOptions{})
	w.must(err)
	w.await("a changed port", func() bool { list, _ := w.store.Accelerations(); return slices.Equal(list[0].Ports, []uint16{80}) })
	w.testAccelerationEvent(made)
	w.must(policies.Delete(w.ctx, "web", metav1.DeleteOptions{}))
	w.await("a deleted policy to go", func() bool { list, _ := w.store.Accelerations(); return len(list) == 0 })

	create("left")
	w.await("another policy", func() bool { list, _ := w.store.Accelerations(); return len(list) == 1 })
	w.must(definitions.Delete(w.ctx, definition.GetName(), metav1.DeleteOptions{}))
	w.await("the kind to be missed again", lacking)
	if list, _ := w.store.Accelerations(); len(list) != 0 || log.lines("CustomResourceDefinition is not installed") != 2 {
		w.Errorf("after the kind has gone: %v, log:\n%s", list, log.text.String())
	}
	w.await("its definition to go", func() bool {
		_, err := definitions.Get(w.ctx, definition.GetName(), metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	install()
	create("new")
	w.await("a policy of the new kind", func() bool {
		list, _ := w.store.Accelerations()
		return len(list) == 1 && list[0].Name == w.name("new")
	})
	w.must(definitions.Delete(w.ctx, definition.GetName(), metav1.DeleteOptions{}))
}

// readAccelerations gives the agent the permissions in the manifest of policies, and returns the
// definition in it.
func (w *apiNamespace) readAccelerations() *unstructured.Unstructured {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "kubernetes", "socketaccelerations.yaml"))
	w.must(err)
	first, second, found := strings.Cut(string(text), "\n---\n")
	if !found {
		w.Fatal("the manifest has only one document")
	}
	var role rbacv1.ClusterRole
	w.must(yaml.UnmarshalStrict([]byte(second), &role))
	_, err = w.client.RbacV1().ClusterRoles().Update(w.ctx, &role, metav1.UpdateOptions{})
	w.must(err)
	definition := &unstructured.Unstructured{}
	w.must(yaml.Unmarshal([]byte(first), &definition.Object))
	return definition
}

// testAccelerationEvent checks that a policy's problem is where kubectl describe shows it.
func (w *apiNamespace) testAccelerationEvent(policy *unstructured.Unstructured) {
	w.Helper()
	w.source.Events().Warn(model.Key{Kind: model.KindAcceleration, Name: w.name(policy.GetName())}, string(policy.GetUID()), "TooManyAccelerations", "one is too many")
	w.await("the event", func() bool { return len(w.ourEvents()) == 1 })
	about := w.ourEvents()[0].InvolvedObject
	if about.APIVersion != policy.GetAPIVersion() || about.Kind != policy.GetKind() || about.Name != policy.GetName() || about.UID != policy.GetUID() {
		w.Errorf("the event is about %+v", about)
	}
}
