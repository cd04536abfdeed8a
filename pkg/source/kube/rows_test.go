package kube

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/render"
	"fairlead.io/fairlead/pkg/snapshot"
)

// reconciler returns a Reconciler on tables in memory, fed by the namespace's Source.
func (w *apiNamespace) reconciler() (*reconcile.Reconciler, *reconcile.Tables) {
	w.Helper()
	tables := reconcile.NewMemory(maps.MinSizes())
	r, err := reconcile.New(reconcile.Config{
		Store:   w.store,
		Tables:  tables,
		Facts:   lb.Facts{},
		Barrier: func() error { return nil },
		Report: func(key model.Key, uid string, p model.Problem) {
			w.source.Events().Warn(key, uid, p.Reason, p.Message)
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	w.must(err)
	return r, tables
}

// rows returns the tables' rows for the namespace, which it replaces by ns. It leaves out the rows
// of the API server's own objects, which the server may create again at any time.
func (w *apiNamespace) rows(tables *reconcile.Tables) string {
	w.Helper()
	snapshot, err := snapshot.Take(snapshot.Tables{
		Frontends: tables.Frontends, Ranges: tables.Ranges, Services: tables.Services, Slots: tables.Slots, Backends: tables.Backends, Names: tables.Names,
	})
	w.must(err)
	var text strings.Builder
	w.must(render.All(&text, snapshot))
	var rows strings.Builder
	own := false
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, " ") {
			own = strings.HasPrefix(line, "default/kubernetes:")
		}
		if !own {
			rows.WriteString(line)
		}
	}
	return strings.ReplaceAll(rows.String(), w.namespace+"/", "ns/")
}

func testToRows(w *apiNamespace) {
	w.cleanDefault()
	dual := corev1.IPFamilyPolicyRequireDualStack
	w.createService("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.IPFamilyPolicy = corev1.ServiceTypeNodePort, &dual
		s.Spec.ClusterIPs = []string{"10.96.0.10", "fd96::10"}
		s.Spec.ClusterIP = "10.96.0.10"
		s.Spec.Ports[0].NodePort = 30080
	})
	w.createSlice("web-1", "web", "10.1.0.1", "10.1.0.2")
	w.createService("headless", func(s *corev1.Service) { s.Spec.ClusterIP = "None" })
	w.createService("empty", func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.11" })
	w.follow()
	r, tables := w.reconciler()
	w.must(r.Drain())
	w.expectRows(tables, `
ns/empty/tcp4 random
  frontend 10.96.0.11:80 ClusterIP
  all   none
ns/web/tcp4 random
  frontend 10.96.0.10:80 ClusterIP
  frontend *:30080 NodePort
  all   10.1.0.1:8080 10.1.0.2:8080
ns/web/tcp6 random
  frontend [fd96::10]:80 ClusterIP
  frontend *:30080 NodePort
  all   none
`)

	w.createSlice("empty-1", "empty", "10.1.0.3")
	w.updateService("web", func(s *corev1.Service) {
		single := corev1.IPFamilyPolicySingleStack
		s.Spec.Type, s.Spec.IPFamilyPolicy = corev1.ServiceTypeClusterIP, &single
		s.Spec.ClusterIPs, s.Spec.IPFamilies = s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
		s.Spec.Ports[0].NodePort = 0
	})
	w.await("the changes", func() bool {
		service, _ := w.store.Service(w.name("web"))
		return len(service.ClusterIPs) == 1 && service.Ports[0].NodePort == 0 && w.hasSlices("empty", "empty-1")
	})
	w.must(r.Drain())
	w.expectRows(tables, `
ns/empty/tcp4 random
  frontend 10.96.0.11:80 ClusterIP
  all   10.1.0.3:8080
ns/web/tcp4 random
  frontend 10.96.0.10:80 ClusterIP
  all   10.1.0.1:8080 10.1.0.2:8080
`)
}

func (w *apiNamespace) expectRows(tables *reconcile.Tables, want string) {
	w.Helper()
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), w.rows(tables)); diff != "" {
		w.Errorf("rows (-want +have):\n%s", diff)
	}
}

// cleanDefault removes all other services, so that a dump has only those of the namespace.
func (w *apiNamespace) cleanDefault() {
	w.Helper()
	all, err := w.client.CoreV1().Services(metav1.NamespaceAll).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for _, s := range all.Items {
		w.must(w.client.CoreV1().Services(s.Namespace).Delete(w.ctx, s.Name, metav1.DeleteOptions{}))
	}
}

func testConflictEvent(w *apiNamespace) {
	external := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.7"} }
	w.createService("first", external)
	w.await("another second, by which the server tells ages", w.anotherSecond())
	loser := w.createService("second", external)
	w.follow()
	r, _ := w.reconciler()
	w.must(r.Drain())
	var events []corev1.Event
	w.await("the event", func() bool {
		events = w.ourEvents()
		return len(events) > 0
	})
	e := events[0]
	if len(events) != 1 || e.Type != corev1.EventTypeWarning || e.Reason != "FrontendConflict" || e.Source.Host != node ||
		e.InvolvedObject.Kind != "Service" || e.InvolvedObject.Name != "second" || e.InvolvedObject.UID != loser.UID {
		w.Errorf("events: %+v", events)
	}
	if !strings.Contains(e.Message, "203.0.113.7") || !strings.Contains(e.Message, "first") {
		w.Errorf("message %q does not say what belongs to whom", e.Message)
	}
}

// testNodeEvent checks that the server accepts an event about a node, which has no namespace.
func testNodeEvent(w *apiNamespace) {
	w.follow()
	for _, warning := range []bool{true, false} {
		reason := fmt.Sprint("Node", warning)
		if !w.source.Events().Node("", warning, reason, "nothing works") {
			w.Fatalf("not queued")
		}
		w.await("the event", func() bool {
			list, err := w.client.CoreV1().Events(metav1.NamespaceDefault).List(w.ctx, metav1.ListOptions{
				FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node + ",reason=" + reason,
			})
			w.must(err)
			return len(list.Items) == 1 && (list.Items[0].Type == corev1.EventTypeWarning) == warning
		})
	}
}

// ourEvents returns the events that the Source posted. The server posts some of its own, for
// example when it repairs addresses.
func (w *apiNamespace) ourEvents() []corev1.Event {
	w.Helper()
	list, err := w.client.CoreV1().Events(w.namespace).List(w.ctx, metav1.ListOptions{})
	w.must(err)
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Source.Component != eventReporter })
}

// anotherSecond returns a condition that holds once a new object would be younger than the existing
// ones.
func (w *apiNamespace) anotherSecond() func() bool {
	var made atomic.Int64
	return func() bool {
		probe, err := w.client.CoreV1().ConfigMaps(w.namespace).Create(w.ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		w.must(err)
		now := probe.CreationTimestamp.Unix()
		made.CompareAndSwap(0, now)
		return now > made.Load()
	}
}

func testEventsAreFew(w *apiNamespace) {
	w.follow()
	service := w.createService("web")
	key := model.Key{Kind: model.KindService, Name: w.name("web")}
	// Another node sees the same problem.
	other, err := New(Config{REST: w.server.Config(), NodeName: "node-2", Version: "test", Store: model.NewStore("node-2"), Log: slog.New(slog.DiscardHandler)})
	w.must(err)
	other.Events().Warn(key, string(service.UID), "Test", "the same")
	w.must(other.Events().post(w.ctx, <-other.Events().queue))
	w.must(other.Events().post(w.ctx, other.Events().event(key, string(service.UID), "Test", "the same")))
	for range 100 {
		w.source.Events().Warn(key, string(service.UID), "Test", "the same")
	}
	w.source.Events().Warn(key, string(service.UID), "Test", strings.Repeat("long ", 1000))
	w.source.Events().Warn(key, string(service.UID), "Last", "posted last")
	var reasons []string
	w.await("the last event", func() bool {
		reasons = reasons[:0]
		last := false
		for _, e := range w.ourEvents() {
			reasons = append(reasons, e.Reason)
			last = last || e.Reason == "Last"
		}
		return last
	})
	if len(reasons) != 3 {
		w.Errorf("posted %v, want three", reasons)
	}
}
