package reconcile

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"unique"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// TestLocality moves an endpoint to another node: the row's flags change, and it stays the same
// backend for the sockets and clients that remember it.
func TestLocality(t *testing.T) {
	store := model.NewStore("node1")
	tables := NewMemory(small)
	r := start(t, store, tables, nil)
	deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1")})
	settle := func(name string, local bool) maps.Backend {
		t.Helper()
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		row := r.tables.Backends[0]
		if got := row.Flags == maps.BackendLocal; got != local {
			t.Errorf("%s: flags %d, want local %v", name, row.Flags, local)
		}
		return maps.BackendIdentity(row)
	}
	before := settle("an endpoint of this node", true)
	owner, words := r.tables.Backends[0].Owner, r.tables.Services[1].Words
	elsewhere := webSlice("10.1.0.1")
	elsewhere.Endpoints[0].Node = unique.Make("node2")
	for _, step := range []struct {
		name  string
		set   func()
		local bool
	}{
		{"of another", func() { store.SetSlice(elsewhere) }, false},
		{"an address of this node", func() { store.SetLocal(addrSeq("10.1.0.1")) }, true},
		{"not any more", func() { store.SetLocal(addrSeq("10.1.0.2")) }, false},
		{"of this node again", func() { store.SetSlice(webSlice("10.1.0.1")) }, true},
	} {
		step.set()
		if after := settle(step.name, step.local); after != before || r.tables.Backends[0].Owner != owner || r.tables.Services[1].Words != words {
			t.Errorf("%s: the backend was %+v and is %+v, or its slots were rewritten", step.name, before, r.tables.Backends[0])
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	gone, err := r.Stale(context.Background(), []maps.Origin{origin(model.TCP, "10.96.0.1:80", "10.1.0.1:8080")})
	if err != nil || gone[0] {
		t.Errorf("a socket's backend is reported as gone: %v, %v", gone, err)
	}
	r.tables.Backends[0].Flags = 0 // damage that no pass repairs until a check runs
	if report, err := r.Verify(context.Background(), true); err != nil || report.Found != 1 || report.Mended != 1 {
		t.Errorf("after a lost flag: %+v, %v", report, err)
	}
}

func addrSeq(addrs ...string) func(func(netip.Addr) bool) {
	list := make([]netip.Addr, 0, len(addrs))
	for _, addr := range addrs {
		list = append(list, netip.MustParseAddr(addr))
	}
	return slices.Values(list)
}
