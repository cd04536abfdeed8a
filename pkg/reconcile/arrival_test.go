package reconcile

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func attachment(pod, device string, created int64, addr string, port uint16) *model.Attachment {
	return &model.Attachment{
		Pod: model.Name{Namespace: "shop", Name: pod}, UID: pod, Device: device, Created: created,
		Addrs: []netip.Addr{netip.MustParseAddr(addr)}, HostPorts: []model.HostPort{{Port: port, ContainerPort: 80, Protocol: model.TCP}},
	}
}

// Await returns once a pod's ports lead to it and not before, whatever fails meanwhile, and names
// the pod that holds them.
func TestAwait(t *testing.T) {
	store := model.NewStore("node0")
	deliver(store, nil, nil)
	var failures atomic.Int32
	r := start(t, store, NewMemory(small), func(op string) error {
		if op == "insert" && failures.Add(-1) >= 0 {
			return errInjected
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = r.Run(ctx) })
	await := func(pod string) error { return r.Await(ctx, model.Name{Namespace: "shop", Name: pod}) }
	row := func() string { return meaning(t, r.tables)["0.0.0.0:80/6"] } // safe to read: Run is idle after each answer

	failures.Store(2)
	store.SetAttachment(attachment("a", "fla", 1, "10.1.0.1", 80))
	if err := await("a"); err != nil || row() != "pod:shop/a:0.0.0.0:80/tcp4 HostPort" {
		t.Errorf("await a: %v; the row is %q", err, row())
	}
	if left := failures.Load(); left >= 0 {
		t.Errorf("%d injected failures are left, so nothing was retried", left)
	}
	store.SetAttachment(attachment("b", "flb", 2, "10.1.0.2", 80))
	var taken *TakenError
	if err := await("b"); !errors.As(err, &taken) || taken.By.String() != "pod:shop/a" || err.Error() != "0.0.0.0:80/tcp of the node leads to pod:shop/a" {
		t.Errorf("await b: %v", err)
	}
	store.DeleteAttachment(model.Name{Namespace: "shop", Name: "a"}, "fla")
	if err := await("b"); err != nil || row() != "pod:shop/b:0.0.0.0:80/tcp4 HostPort" {
		t.Errorf("await b: %v; the row is %q", err, row())
	}
	store.DeleteAttachment(model.Name{Namespace: "shop", Name: "b"}, "flb")
	if err := await("b"); err != nil || row() != "" {
		t.Errorf("await b after it is gone: %v; the row is %q", err, row())
	}

	nodePort := web("10.96.0.1")
	nodePort.Ports[0].NodePort = 80
	store.SetService(nodePort)
	store.SetAttachment(attachment("c", "flc", 3, "10.1.0.3", 80))
	if err := await("c"); err != nil || row() != "shop/web:http/tcp4 NodePort" {
		t.Errorf("await c, whose port a Service has: %v; the row is %q", err, row())
	}
	if found := r.Problems()[model.Key{Kind: model.KindPod, Name: model.Name{Namespace: "shop", Name: "c"}}]; len(found) != 1 || found[0].Reason != "FrontendConflict" {
		t.Errorf("c's problems are %v", found)
	}

	failures.Store(1 << 30)
	store.SetAttachment(attachment("d", "fld", 4, "10.1.0.4", 81))
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := r.Await(short, model.Name{Namespace: "shop", Name: "d"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await d, which cannot be written: %v", err)
	}
	cancel()
	running.Wait()
	if err := r.Await(context.Background(), model.Name{Namespace: "shop", Name: "d"}); !errors.Is(err, errArrivalEnded) {
		t.Errorf("await d after Run ended: %v", err)
	}
}

// What the runtime asks for is known completely at once. Neither serving a pod's new address nor
// ending with the pod waits for the sources.
func TestRuntimeNeedsNoSource(t *testing.T) {
	tables := NewMemory(small)
	before := model.NewStore("node0")
	deliver(before, nil, nil)
	before.SetAttachment(attachment("a", "fla", 1, "10.1.0.1", 80))
	if err := start(t, before, tables, nil).Drain(); err != nil {
		t.Fatal(err)
	}

	store := model.NewStore("node0") // nothing is delivered to it
	r := start(t, store, tables, nil)
	backend := func() string { return meaning(t, r.tables)["pod:shop/a:0.0.0.0:80/tcp4"] }
	old := backend()
	store.SetAttachment(attachment("a", "flb", 2, "10.1.0.2", 80))
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if got := backend(); got == old || got == "" {
		t.Errorf("a pod that was recreated while the agent was away has %q, before it had %q", got, old)
	}
	store.DeleteAttachment(model.Name{Namespace: "shop", Name: "a"}, "flb")
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if said := meaning(t, r.tables); len(said) != 0 {
		t.Errorf("rows of a pod that is gone: %v", said)
	}
}

// Connections to a host port may stay with the pod's present interface, not with an address that
// the Pod's status had before.
func TestAllowedByPod(t *testing.T) {
	store := model.NewStore("node0")
	r := start(t, store, NewMemory(small), nil)
	name := model.Name{Namespace: "shop", Name: "a"}
	was, is := netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("10.1.0.1")
	kept := func() (list []bool) {
		k := r.objects.allowedByPod(name)
		for _, addr := range []netip.Addr{was, is} {
			list = append(list, k != nil && k.Has(maps.BackendOf(addr, 80, model.UDP)))
		}
		return list
	}
	for _, step := range []struct {
		name string
		do   func()
		want []bool
	}{
		{"nothing", func() {}, []bool{false, false}},
		{"the Pod", func() { store.SetPod(&model.Pod{Name: name, Addrs: []netip.Addr{was}}) }, []bool{true, false}},
		{"and what the runtime told", func() { store.SetAttachment(attachment("a", "fla", 1, "10.1.0.1", 80)) }, []bool{false, true}},
		{"which is all", func() { store.DeletePod(name) }, []bool{false, true}},
	} {
		if step.do(); !slices.Equal(kept(), step.want) {
			t.Errorf("%s: kept is %v, want %v", step.name, kept(), step.want)
		}
	}
}
