// Package tenant attacks by the API: one tenant, which may write every Service and EndpointSlice of
// its namespace in any form, must neither change what the clients of another tenant and of the node
// get, nor take more of the maps than the quotas. What it writes is generated.
package tenant

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/source"
)

const (
	shop = "shop" // the tenant that has to be left alone
	evil = "evil"
)

// node is one node: its store, its reconciler and tables that stand for its maps.
type node struct {
	t          *testing.T
	store      *model.Store
	tables     *reconcile.Tables
	reconciler *reconcile.Reconciler
}

// start returns a node that also has an address that no Node lists.
func start(t *testing.T) *node {
	n := &node{t: t, store: model.NewStore("node-a"), tables: reconcile.NewMemory(maps.Sizes{Svcs: 64, Services: 16, Slots: 64, Backends: 16})}
	n.store.SetLocal(slices.Values([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr(virtual)}))
	cfg := config(n.store, n.tables)
	cfg.Barrier = func() error { return nil }
	cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	cfg.Grow = func(sizes maps.Sizes) (*reconcile.Tables, error) {
		n.tables = reconcile.GrowMemory(n.tables, sizes)
		return n.tables, nil
	}
	r, err := reconcile.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.reconciler = r
	n.store.ReplaceNodes([]*model.Node{
		{Name: "node-a", Addrs: addrs("192.0.2.1"), PodCIDRs: prefixes("10.1.0.0/24")},
		{Name: "node-b", Addrs: addrs("192.0.2.2"), PodCIDRs: prefixes("10.1.1.0/24")},
	})
	n.store.ReplaceServices(nil)
	n.store.ReplaceSlices(nil)
	n.store.ReplacePods(nil)
	n.store.ReplaceNamespaces(nil)
	return n
}

func (n *node) waitApplied() {
	n.t.Helper()
	if err := n.reconciler.Drain(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) set(services []*corev1.Service, list []*discoveryv1.EndpointSlice) {
	for _, s := range services {
		if out := source.Service(s); out != nil {
			n.store.SetService(out)
		}
	}
	for _, s := range list {
		if out := source.Slice(s); out != nil {
			n.store.SetSlice(out)
		}
	}
}

func (n *node) remove(services []*corev1.Service, list []*discoveryv1.EndpointSlice) {
	for _, s := range services {
		n.store.DeleteService(model.Name{Namespace: s.Namespace, Name: s.Name})
	}
	for _, s := range list {
		n.store.DeleteSlice(model.Name{Namespace: s.Namespace, Name: s.Name})
	}
}

// answers says what a client gets for each destination: nothing, or the backends in their slots.
func (n *node) answers(destinations []maps.SvcKey) map[maps.SvcKey]string {
	out := make(map[maps.SvcKey]string, len(destinations))
	for _, key := range destinations {
		row, ok, err := n.tables.Frontends.Lookup(key)
		if err != nil {
			n.t.Fatal(err)
		}
		if ok {
			out[key] = maps.KindNames[row.Kind] + n.backends(row.Service)
		}
	}
	return out
}

func (n *node) backends(index uint32) string {
	var b strings.Builder
	service := n.tables.Services[index]
	fmt.Fprintf(&b, " flags %d algorithm %d affinity %d", service.Flags, service.Algorithm, service.AffinitySeconds)
	for _, value := range service.Words {
		word := maps.Word(value)
		for _, slot := range n.tables.Slots[word.Off():][:word.Len()] {
			fmt.Fprintf(&b, " %s", maps.BackendAddrPort(n.tables.Backends[maps.SlotBackend(slot)]))
		}
		b.WriteString(" |")
	}
	return b.String()
}

func (n *node) namespaceOf(index uint32) string {
	var text []byte
	for _, c := range n.tables.Names[index].Text {
		if c == '/' || c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return string(text)
}

// check finds what the tenant must not have got.
func (n *node) check() (found []string) {
	frontends, hosted, backends, slots := 0, 0, 0, 0
	err := n.tables.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		if n.namespaceOf(row.Service) != evil {
			return
		}
		if maps.IsHosted(key) {
			hosted++
			return
		}
		frontends++
		at := maps.AddrPort(key)
		switch {
		case row.Kind == maps.NodePort && (at.Port() < 30000 || at.Port() > 32767):
			found = append(found, fmt.Sprintf("%v is out of the range of node ports", at))
		case row.Kind != maps.NodePort && special(at.Addr()):
			found = append(found, fmt.Sprintf("%v is no address of a Service", at))
		}
	})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, b := range n.tables.Backends {
		if b.Owner == 0 || n.namespaceOf(maps.BackendService(b)) != evil {
			continue
		}
		backends++
		if at := maps.BackendAddrPort(b); special(at.Addr()) {
			found = append(found, fmt.Sprintf("%v is no address of an endpoint", at))
		}
	}
	for i, service := range n.tables.Services {
		if n.namespaceOf(uint32(i)) == evil {
			for _, word := range service.Words {
				slots += maps.Word(word).Len()
			}
		}
	}
	for _, q := range []struct {
		name      string
		has, most int
	}{{"frontends", frontends, mostFrontends}, {"hosted", hosted, mostHosted}, {"backends", backends, mostBackends}, {"slots", slots, mostSlots}} {
		if q.has > q.most {
			found = append(found, fmt.Sprintf("%d %s, the quota of the namespace is %d", q.has, q.name, q.most))
		}
	}
	return found
}

// special is written apart from what it tests.
func special(addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32",
		"::/96", "::ffff:0:0:0/96", "fe80::/10", "ff00::/8"), func(p netip.Prefix) bool { return p.Contains(addr) })
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// cases is how many random tenants there are. Each writes, changes and deletes its objects.
const cases = 3000

func TestTenantsLeaveEachOtherAlone(t *testing.T) {
	for seed := range uint64(cases) {
		if t.Failed() {
			return
		}
		attack(t, seed)
	}
}

func attack(t *testing.T, seed uint64) {
	g := &generator{rand: rand.New(rand.NewPCG(seed, 36))}
	n := start(t)
	services, list := honest()
	first := g.chance(50) // the attacker may come before and after
	if !first {
		n.set(services, list)
		n.waitApplied()
	}
	var all []*corev1.Service
	var allSlices []*discoveryv1.EndpointSlice
	for range 1 + g.rand.IntN(3) {
		s, l := g.objects()
		n.set(s, l)
		all, allSlices = append(all, s...), append(allSlices, l...)
		n.waitApplied()
	}
	if first {
		n.set(services, list)
		n.waitApplied()
	}
	alone := start(t)
	alone.set(services, list)
	alone.waitApplied()
	compare := func(when string) {
		want, have := alone.answers(destinations()), n.answers(destinations())
		for _, key := range destinations() {
			if want[key] != have[key] {
				t.Errorf("seed %d, %s: %v/%d gets\n%q, without the tenant\n%q", seed, when, maps.AddrPort(key), key.Proto, have[key], want[key])
			}
		}
		if found := n.check(); len(found) > 0 {
			t.Errorf("seed %d, %s: the tenant has\n%s", seed, when, strings.Join(found, "\n"))
		}
	}
	compare("with the tenant's objects")
	n.remove(all, allSlices)
	n.waitApplied()
	compare("after the tenant deleted its objects")
	if left := n.reconciler.Stats(); left.Services != alone.reconciler.Stats().Services || left.Backends != alone.reconciler.Stats().Backends {
		t.Errorf("seed %d: the tenant's objects are gone and left something: %+v", seed, left)
	}
}
