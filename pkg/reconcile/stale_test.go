package reconcile

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func origin(protocol model.Protocol, dialed, backend string) maps.Origin {
	to, got := netip.MustParseAddrPort(dialed), netip.MustParseAddrPort(backend)
	return maps.Origin{
		Dialed:  maps.KeyOf(to.Addr(), to.Port(), protocol),
		Backend: maps.BackendOf(got.Addr(), got.Port(), protocol),
	}
}

// overUDP turns a Service and its slice into UDP ones.
func overUDP(service *model.Service, slice *model.Slice) (*model.Service, *model.Slice) {
	service.Ports[0].Protocol, slice.Ports[0].Protocol = model.UDP, model.UDP
	return service, slice
}

func TestStale(t *testing.T) {
	tcp, tcpSlice := web("10.96.0.1"), webSlice("10.1.0.1", "10.1.0.2")
	udp, udpSlice := overUDP(web("10.96.0.2"), webSlice("10.1.0.1", "10.1.0.2"))
	udp.Name.Name, udpSlice.Name.Name, udpSlice.Service = "dns", "dns-1", "dns"
	udp.Ports[0].NodePort = 30053
	pod := &model.Pod{
		Name: model.Name{Namespace: "shop", Name: "edge"}, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9")},
		HostPorts: []model.HostPort{{Port: 9000, ContainerPort: 53, Protocol: model.UDP}},
	}
	cases := []struct {
		name   string
		origin maps.Origin
		want   bool
	}{
		{"datagrams", origin(model.UDP, "10.96.0.2:80", "10.1.0.1:8080"), false},
		{"datagrams to who is gone", origin(model.UDP, "10.96.0.2:80", "10.1.0.3:8080"), true},
		{"datagrams to another port", origin(model.UDP, "10.96.0.2:80", "10.1.0.1:8081"), true},
		{"datagrams to no Service", origin(model.UDP, "10.96.0.9:80", "10.1.0.1:8080"), true},
		{"a node port", origin(model.UDP, "192.0.2.1:30053", "10.1.0.1:8080"), false},
		{"a node port of loopback", origin(model.UDP, "127.0.0.1:30053", "10.1.0.3:8080"), true},
		{"a host port", origin(model.UDP, "192.0.2.1:9000", "10.1.0.9:53"), false},
		{"a host port of a pod before", origin(model.UDP, "192.0.2.1:9000", "10.1.0.8:53"), true},
		{"a stream", origin(model.TCP, "10.96.0.1:80", "10.1.0.2:8080"), false},
		{"a stream to who is gone", origin(model.TCP, "10.96.0.1:80", "10.1.0.3:8080"), true},
		{"a stream to no Service", origin(model.TCP, "10.96.0.9:80", "10.1.0.3:8080"), false},
		{"the other protocol", origin(model.TCP, "10.96.0.2:80", "10.1.0.3:8080"), false},
	}
	store := model.NewStore("node0")
	r := start(t, store, NewMemory(small), nil)
	store.ReplaceServices([]*model.Service{tcp, udp})
	store.ReplaceSlices([]*model.Slice{tcpSlice, udpSlice})
	var origins []maps.Origin
	for _, c := range cases {
		origins = append(origins, c.origin)
	}
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if stale := r.stale.areStale(origins); slices.Contains(stale, true) {
		t.Errorf("before the sources are complete: %v", stale)
	}
	store.ReplacePods([]*model.Pod{pod})
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	for i, stale := range r.stale.areStale(origins) {
		if stale != cases[i].want {
			t.Errorf("%s: stale is %v", cases[i].name, stale)
		}
	}
	// The object that could not be applied may be the one with the frontend.
	r.objects.failed[model.Key{}] = struct{}{}
	if stale := r.stale.areStale([]maps.Origin{origin(model.UDP, "10.96.0.9:80", "10.1.0.1:8080")}); stale[0] {
		t.Error("stale although an object waits for a retry")
	}
}

// Stale is called from another goroutine while Run runs. It asks in parts, and fails once Run has
// ended.
func TestStaleWhileRunning(t *testing.T) {
	store := model.NewStore("node0")
	udp, slice := overUDP(web("10.96.0.2"), webSlice("10.1.0.1"))
	deliver(store, []*model.Service{udp}, []*model.Slice{slice})
	r := start(t, store, NewMemory(small), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	synced := make(chan struct{}, 2)
	r.cfg.Left = func(model.Protocol) { synced <- struct{}{} }
	go func() { ended <- r.Run(ctx) }()
	<-synced
	var origins []maps.Origin
	for range 3*maxOrigins + 1 {
		origins = append(origins, origin(model.UDP, "10.96.0.2:80", "10.1.0.1:8080"), origin(model.UDP, "10.96.0.2:80", "10.1.0.2:8080"))
	}
	stale, err := r.Stale(t.Context(), origins)
	if err != nil || len(stale) != len(origins) {
		t.Fatalf("%d answers to %d, %v", len(stale), len(origins), err)
	}
	for i := range stale {
		if stale[i] != (i%2 == 1) {
			t.Fatalf("answer %d is %v", i, stale[i])
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := r.Stale(t.Context(), origins); !errors.Is(err, errStaleEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// Left is called for changes that can make sockets stale, and not for what is new.
func TestLeft(t *testing.T) {
	store := model.NewStore("node0")
	var left []model.Protocol
	r := start(t, store, NewMemory(small), nil)
	r.cfg.Left = func(p model.Protocol) { left = append(left, p) }
	pass := func(what string, want ...model.Protocol) {
		t.Helper()
		left = nil
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(left)
		if !slices.Equal(left, want) {
			t.Errorf("%s: Left of %v, want %v", what, left, want)
		}
	}
	udp, both := overUDP(web("10.96.0.2"), webSlice("10.1.0.1", "10.1.0.2"))
	store.SetService(udp)
	store.SetSlice(both)
	pass("not complete")
	deliver(store, []*model.Service{udp}, []*model.Slice{both})
	pass("complete", model.TCP, model.UDP)
	pass("nothing")
	_, one := overUDP(web("10.96.0.2"), webSlice("10.1.0.1"))
	store.SetSlice(one)
	pass("a backend left", model.UDP)
	_, drains := overUDP(web("10.96.0.2"), webSlice("10.1.0.1", "10.1.0.3"))
	drains.Endpoints[1].Conditions = model.Serving | model.Terminating
	store.SetSlice(drains)
	pass("a backend came that only drains", model.UDP) // a false alarm: the sum only says that something changed
	store.SetSlice(one)
	pass("it left, having been in no table", model.UDP)
	store.DeleteService(udp.Name)
	pass("the Service is deleted", model.UDP)
	store.SetService(web("10.96.0.3"))
	pass("another came")
	older := web("10.96.0.3")
	older.Name.Name, older.Created = "older", 0
	store.SetService(older)
	pass("its frontend passed to an older one", model.TCP)
}
