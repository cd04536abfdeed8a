package listwatch

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source/kube"
)

// agent is the product's source of objects, connected to a Server.
type agent struct {
	t      *testing.T
	server *Server
	store  *model.Store
	source *kube.Source
}

// follow starts an agent on the first node and waits until it has everything.
func follow(t *testing.T, cfg Config) *agent {
	t.Helper()
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	a := &agent{t: t, server: server, store: model.NewStore("node-0")}
	a.source, err = kube.New(kube.Config{
		REST: &rest.Config{Host: web.URL}, NodeName: "node-0", Store: a.store, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.source.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	select {
	case <-a.store.Synced():
	case <-time.After(time.Minute):
		t.Fatalf("not synced: %+v", a.source.Status())
	}
	return a
}

// await waits until so returns true. It checks whenever the store reports a change.
func (a *agent) await(what string, so func() bool) {
	a.t.Helper()
	limit := time.After(30 * time.Second)
	for !so() {
		select {
		case <-a.store.Wake():
			a.store.TakeDirty()
		case <-limit:
			a.t.Fatalf("waited too long for %s: %+v", what, a.source.Status())
		}
	}
}

func (a *agent) name(service int) model.Name {
	namespace, name := a.server.Fleet().ServiceName(service)
	return model.Name{Namespace: namespace, Name: name}
}

// count returns the number of Services, ready endpoints and pods in the store.
func (a *agent) count() (services, ready, pods int) {
	for _, key := range a.store.Keys() {
		if key.Kind == model.KindPod {
			pods++
			continue
		}
		service, slices := a.store.Service(key.Name)
		if service != nil {
			services++
		}
		for _, slice := range slices {
			for _, e := range slice.Endpoints {
				if e.Conditions&model.Ready != 0 {
					ready++
				}
			}
		}
	}
	return services, ready, pods
}

func (a *agent) ready(service int) int {
	_, slices := a.store.Service(a.name(service))
	n := 0
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			if e.Conditions&model.Ready != 0 {
				n++
			}
		}
	}
	return n
}

// The agent's own source, with the client library that it uses, sees the server's objects and every
// change of them, whether the list comes as a stream or at once.
func TestSourceFollows(t *testing.T) {
	for name, paged := range map[string]bool{"streamed": false, "listed": true} {
		t.Run(name, func(t *testing.T) {
			a := follow(t, Config{Fleet: Fleet{Services: 1200, Endpoints: 3, Nodes: 7, Namespaces: 5}, Paged: paged})
			if services, ready, _ := a.count(); services != 1200 || ready != 3600 {
				t.Fatalf("%d services and %d ready endpoints arrived, want 1200 and 3600", services, ready)
			}
			// Pod n is on node n modulo 7.
			here, there := a.server.Fleet().podName(14), a.server.Fleet().podName(15)
			if a.store.Pod(model.Name{Namespace: a.name(4).Namespace, Name: here}) == nil {
				t.Error("a pod of this node did not arrive")
			}
			if a.store.Pod(model.Name{Namespace: a.name(5).Namespace, Name: there}) != nil {
				t.Error("a pod of another node arrived")
			}
			if self := a.store.Self(); self.UID == "" || self.Zone != "zone-0" {
				t.Errorf("this node arrived as %+v", self)
			}

			a.must(a.server.Change(Slices, 17))
			a.await("an endpoint to go", func() bool { return a.ready(17) == 2 })
			a.must(a.server.Change(Slices, 17))
			a.await("it to come back", func() bool { return a.ready(17) == 3 })
			a.must(a.server.Change(Services, 17))
			a.await("another port", func() bool { s, _ := a.store.Service(a.name(17)); return s.Ports[0].Port == 81 })
			number, err := a.server.AddService()
			a.must(err)
			a.await("a new service", func() bool { s, _ := a.store.Service(a.name(number)); return s != nil && a.ready(number) == 3 })
			a.must(a.server.DeleteService(3))
			a.await("a service to go", func() bool { s, l := a.store.Service(a.name(3)); return s == nil && len(l) == 0 })
			for _, k := range a.source.Status().Kinds {
				if k.Relists != 0 || k.Error != "" {
					t.Errorf("relists or errors without an outage: %+v", k)
				}
			}
		})
	}
}

func (a *agent) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// After 410 Gone everything is listed again, and later changes are seen as before.
func TestSourceListsAgainWhenExpired(t *testing.T) {
	for name, paged := range map[string]bool{"streamed": false, "listed": true} {
		t.Run(name, func(t *testing.T) {
			a := follow(t, Config{Fleet: Fleet{Services: 50, Endpoints: 2, Nodes: 1, Namespaces: 1}, Paged: paged})
			a.must(a.server.Change(Slices, 1))
			a.await("a change", func() bool { return a.ready(1) == 1 })
			a.must(a.server.state.edit(func() error {
				// No watch delivers this event in time.
				if err := a.server.state.remove(Services, 2); err != nil {
					return err
				}
				a.server.state.forget()
				return nil
			}))
			a.await("what was missed", func() bool { s, _ := a.store.Service(a.name(2)); return s == nil })
			a.must(a.server.Change(Slices, 3))
			a.await("a change after it", func() bool { return a.ready(3) == 1 })
			// A kind's status is updated after its objects went to the store, so before its next
			// objects.
			a.must(a.server.Change(Services, 3))
			a.await("another port", func() bool { s, _ := a.store.Service(a.name(3)); return s.Ports[0].Port == 81 })
			for _, k := range a.source.Status().Kinds {
				if k.Kind == "services" && k.Relists != 1 {
					t.Errorf("listed again %d times, want once: %+v", k.Relists, k)
				}
			}
		})
	}
}

// After twenty thousand changes, far more than the server remembers, the agent has the server's
// state.
func TestSourceKeepsUp(t *testing.T) {
	a := follow(t, Config{Fleet: Fleet{Services: 100, Endpoints: 2, Nodes: 1, Namespaces: 1}, Memory: 64})
	for n := range 20_000 {
		a.must(a.server.Change(Slices, n%100))
	}
	a.must(a.server.Change(Slices, 42))
	a.await("the last state", func() bool {
		for n := range 100 {
			want := 2
			if n == 42 {
				want = 1
			}
			if a.ready(n) != want {
				return false
			}
		}
		return true
	})
}
