package reconcile

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"unique"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// randomCluster is a cluster whose objects change at random. It has few names and addresses, so that
// everything collides.
type randomCluster struct {
	rand     *rand.Rand
	services map[model.Name]*model.Service
	slices   map[model.Name]*model.Slice
	pods     map[model.Name]*model.Pod
	attached map[string]*model.Attachment
	nodes    map[string]*model.Node
	clock    int64
}

func newRandomCluster(seed uint64) *randomCluster {
	return &randomCluster{
		rand:     rand.New(rand.NewPCG(seed, 7)),
		services: map[model.Name]*model.Service{},
		slices:   map[model.Name]*model.Slice{},
		pods:     map[model.Name]*model.Pod{},
		attached: map[string]*model.Attachment{},
		nodes:    map[string]*model.Node{},
	}
}

func (w *randomCluster) chance(percent int) bool { return w.rand.IntN(100) < percent }

func (w *randomCluster) name(kinds int) model.Name {
	return model.Name{Namespace: "ns", Name: fmt.Sprint("o", w.rand.IntN(kinds))}
}

func (w *randomCluster) addr(format string, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, 1+w.rand.IntN(n)))
}

func (w *randomCluster) service(name model.Name) *model.Service {
	w.clock++
	s := &model.Service{Name: name, UID: fmt.Sprint("uid", w.clock), Created: w.clock / 3}
	s.ClusterIPs = append(s.ClusterIPs, w.addr("10.96.0.%d", 12))
	if w.chance(40) {
		s.ClusterIPs = append(s.ClusterIPs, w.addr("fd96::%d", 12))
	}
	if w.chance(30) {
		s.ExternalIPs = append(s.ExternalIPs, w.addr("10.96.0.%d", 14), w.addr("203.0.113.%d", 3), w.addr("198.51.100.%d", 4))
	}
	if w.chance(20) {
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, w.addr("198.51.100.%d", 3))
		for range w.rand.IntN(4) {
			s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(w.addr("203.0.%d.0", 5), 24+w.rand.IntN(2)))
		}
	}
	for i := range 1 + w.rand.IntN(2) {
		p := model.Port{Name: fmt.Sprint("p", i), Port: uint16(80 + i), Protocol: model.TCP}
		if w.chance(30) {
			p.NodePort = uint16(30000 + w.rand.IntN(4))
		}
		s.Ports = append(s.Ports, p)
	}
	s.InternalLocal, s.ExternalLocal = w.chance(20), w.chance(20)
	s.Algorithm = []string{"", "", "maglev", "round-robin", "lc"}[w.rand.IntN(5)]
	return s
}

func (w *randomCluster) slice(name model.Name) *model.Slice {
	s := &model.Slice{Name: name, Service: w.name(8).Name, Family: model.IPv4, Weight: 1}
	format := "10.1.0.%d"
	if w.chance(30) {
		s.Family, format = model.IPv6, "fd01::%d"
	}
	if w.chance(10) {
		s.Weight = uint16(w.rand.IntN(4))
	}
	for i := range 1 + w.rand.IntN(2) {
		s.Ports = append(s.Ports, model.SlicePort{Name: fmt.Sprint("p", i), Port: uint16(8080 + w.rand.IntN(2)), Protocol: model.TCP})
	}
	seen := map[netip.Addr]bool{}
	for range w.rand.IntN(6) {
		addr := w.addr(format, 30)
		if seen[addr] {
			continue
		}
		seen[addr] = true
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Addr:       addr,
			Node:       unique.Make(fmt.Sprint("node", w.rand.IntN(3))),
			Conditions: model.Conditions(w.rand.IntN(8)),
		})
	}
	return s
}

func (w *randomCluster) pod(name model.Name) *model.Pod {
	w.clock++
	p := &model.Pod{Name: name, UID: fmt.Sprint("uid", w.clock), Created: w.clock / 3, Addrs: []netip.Addr{w.addr("10.1.0.%d", 30)}}
	h := model.HostPort{Port: uint16(30000 + w.rand.IntN(5)), ContainerPort: 80, Protocol: model.TCP}
	if w.chance(50) {
		h.HostIP = w.addr("192.0.2.%d", 2)
	}
	p.HostPorts = append(p.HostPorts, h)
	return p
}

// attachment returns an attachment of one of the same pods. Sometimes a pod is attached twice.
func (w *randomCluster) attachment() *model.Attachment {
	p := w.pod(w.name(4))
	return &model.Attachment{
		Pod: p.Name, UID: p.UID, Device: fmt.Sprint("fl", w.rand.IntN(5)), Created: p.Created, Addrs: p.Addrs, HostPorts: p.HostPorts,
	}
}

// step changes one object and tells the store, unless the event is lost.
func (w *randomCluster) step(store *model.Store, lost bool) {
	tell := func(f func()) {
		if !lost {
			f()
		}
	}
	switch w.rand.IntN(11) {
	case 10: // attachments come from the CNI plugin and are never lost
		a := w.attachment()
		if was := w.attached[a.Device]; was != nil {
			delete(w.attached, a.Device)
			store.DeleteAttachment(was.Pod, was.Device)
			return
		}
		w.attached[a.Device] = a
		store.SetAttachment(a)
	case 0, 1, 2:
		s := w.service(w.name(8))
		w.services[s.Name] = s
		tell(func() { store.SetService(s) })
	case 3:
		name := w.name(8)
		delete(w.services, name)
		tell(func() { store.DeleteService(name) })
	case 4, 5, 6:
		s := w.slice(w.name(12))
		w.slices[s.Name] = s
		tell(func() { store.SetSlice(s) })
	case 7:
		name := w.name(12)
		delete(w.slices, name)
		tell(func() { store.DeleteSlice(name) })
	case 8:
		p := w.pod(w.name(4))
		if w.chance(40) {
			delete(w.pods, p.Name)
			tell(func() { store.DeletePod(p.Name) })
			return
		}
		w.pods[p.Name] = p
		tell(func() { store.SetPod(p) })
	case 9:
		n := &model.Node{Name: fmt.Sprint("node", w.rand.IntN(3)), Zone: fmt.Sprint("z", w.rand.IntN(2)), Addrs: []netip.Addr{w.addr("203.0.113.%d", 3)}}
		if w.chance(30) {
			delete(w.nodes, n.Name)
			tell(func() { store.DeleteNode(n.Name) })
			return
		}
		for range w.rand.IntN(3) {
			n.PodCIDRs = append(n.PodCIDRs, netip.PrefixFrom(w.addr("10.244.%d.0", 4), 24))
		}
		w.nodes[n.Name] = n
		tell(func() { store.SetNode(n) })
	}
}

// relist tells the store everything. One of the hostIPs is not local.
func (w *randomCluster) relist(store *model.Store) {
	store.SetLocal(slices.Values([]netip.Addr{netip.MustParseAddr("192.0.2.1")}))
	for _, a := range w.attached {
		store.SetAttachment(a)
	}
	store.ReplaceServices(values(w.services))
	store.ReplaceSlices(values(w.slices))
	store.ReplacePods(values(w.pods))
	store.ReplaceNodes(values(w.nodes))
	store.ReplaceNamespaces(nil)
}

func values[K comparable, V any](m map[K]V) []V {
	list := make([]V, 0, len(m))
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

var errInjected = errors.New("injected")

// faults makes every operation fail now and then. If it is strict, it also checks that no row is
// written unprepared.
type faults struct {
	Frontends
	t           *testing.T
	fail        func(op string) error
	prepared    map[preparation]bool
	rangeEpochs *watchedRangeEpochs
	strict      bool
}

// preparation identifies what Prepare was called for.
type preparation struct {
	key  maps.SvcKey
	kind uint32
}

func (f *faults) prepare(keys []maps.SvcKey, rows []maps.Svc) error {
	if err := f.fail("prepare"); err != nil {
		return err
	}
	for i, key := range keys {
		f.prepared[preparation{key, rows[i].Kind}] = true
	}
	return nil
}

func (f *faults) check(key maps.SvcKey, row maps.Svc) {
	if f.strict && !f.prepared[preparation{key, row.Kind}] {
		f.t.Errorf("%v of kind %d is written without having been prepared", maps.AddrPort(key), row.Kind)
	}
}

func (f *faults) Insert(keys []maps.SvcKey, rows []maps.Svc) error {
	defer f.rangeEpochs.hold("insert")
	for i, key := range keys {
		f.check(key, rows[i])
	}
	if err := f.fail("insert"); err != nil {
		// A batch may stop half way.
		half := len(keys) / 2
		_ = f.Frontends.Insert(keys[:half], rows[:half])
		return err
	}
	return f.Frontends.Insert(keys, rows)
}

// rangeFaults does the same for the ranges.
type rangeFaults struct {
	Ranges
	fail        func(op string) error
	rangeEpochs *watchedRangeEpochs
}

func (f *rangeFaults) Insert(rows []maps.Range) error {
	defer f.rangeEpochs.hold("insert ranges")
	if err := f.fail("insert ranges"); err != nil {
		_ = f.Ranges.Insert(rows[:len(rows)/2])
		return err
	}
	return f.Ranges.Insert(rows)
}

func (f *rangeFaults) Delete(rows []maps.Range) error {
	defer f.rangeEpochs.hold("delete ranges")
	if err := f.fail("delete ranges"); err != nil && len(rows) > 0 {
		_ = f.Ranges.Delete(rows[:len(rows)/2])
		return err
	}
	return f.Ranges.Delete(rows)
}

func (f *faults) Lookup(key maps.SvcKey) (maps.Svc, bool, error) {
	if err := f.fail("lookup"); err != nil {
		return maps.Svc{}, false, err
	}
	return f.Frontends.Lookup(key)
}

func (f *faults) Update(key maps.SvcKey, row maps.Svc) error {
	defer f.rangeEpochs.hold("update")
	f.check(key, row)
	if err := f.fail("update"); err != nil {
		return err
	}
	return f.Frontends.Update(key, row)
}

func (f *faults) Delete(keys []maps.SvcKey) error {
	defer f.rangeEpochs.hold("delete")
	if err := f.fail("delete"); err != nil {
		_ = f.Frontends.Delete(keys[:len(keys)/2])
		return err
	}
	return f.Frontends.Delete(keys)
}

var small = maps.Sizes{Svcs: 8, Services: 4, Slots: 16, Backends: 4}

// start returns a Reconciler for the tables. Each operation asks fail first whether to fail.
func start(t *testing.T, store *model.Store, tables *Tables, fail func(string) error) *Reconciler {
	t.Helper()
	if fail == nil {
		fail = func(string) error { return nil }
	}
	prepared := map[preparation]bool{}
	last := &faults{}
	current := tables
	rangeEpochs := &watchedRangeEpochs{t: t, fail: fail, tables: func() *Tables { return current }}
	wrap := func(tables *Tables) *Tables {
		c := *tables
		last = &faults{tables.Frontends, t, fail, prepared, rangeEpochs, last.strict}
		c.Frontends = last
		c.Ranges = &rangeFaults{tables.Ranges, fail, rangeEpochs}
		return &c
	}
	r, err := New(Config{
		Store:   store,
		Tables:  wrap(current),
		Facts:   lb.Facts{ExternalIPs: lb.ExternalIPsAll},
		Barrier: func() error { return fail("barrier") },
		Grow: func(sizes maps.Sizes) (*Tables, error) {
			if err := fail("grow"); err != nil {
				return nil, err
			}
			current = GrowMemory(current, sizes)
			return wrap(current), nil
		},
		Prepare:     func(keys []maps.SvcKey, rows []maps.Svc) error { return last.prepare(keys, rows) },
		RangeEpochs: rangeEpochs,
		Log:         slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// meaning returns what the tables say, without indexes, offsets and tags, and checks that they are
// sound.
func meaning(t *testing.T, tables *Tables) map[string]string {
	t.Helper()
	said := map[string]string{}
	used := map[uint32]string{}
	owners := make([]uint32, len(tables.Backends))
	sources := map[uint32][]string{}
	_ = tables.Ranges.Each(func(r maps.Range) { sources[r.Service] = append(sources[r.Service], r.Prefix.String()) })
	if inside := slices.Sorted(slices.Values(sources[maps.Inside])); len(inside) > 0 {
		said[whereInside] = fmt.Sprint(inside)
		delete(sources, maps.Inside)
	}
	if clusterIPs := slices.Sorted(slices.Values(sources[maps.ClusterIPs])); len(clusterIPs) > 0 {
		said[whereClusterIPs] = fmt.Sprint(clusterIPs)
		delete(sources, maps.ClusterIPs)
	}
	for index := range tables.Services {
		name := textOf(&tables.Names[index])
		if name == "" {
			if len(sources[uint32(index)]) > 0 {
				t.Fatalf("service %d is free but has the source ranges %v", index, sources[uint32(index)])
			}
			continue
		}
		row := tables.Services[index]
		text := fmt.Sprintf("algorithm %d flags %d affinity %d", row.Algorithm, row.Flags, row.AffinitySeconds)
		ranges := slices.Sorted(slices.Values(sources[uint32(index)]))
		if guarded := row.Flags&maps.SourceRanges != 0; guarded != (len(ranges) > 0) {
			t.Fatalf("%s has flags %d and the source ranges %v", name, row.Flags, ranges)
		}
		text += fmt.Sprintf(" %v", ranges)
		for scope, value := range row.Words {
			word := maps.Word(value)
			text += fmt.Sprintf(" | %d:", scope)
			for i := range word.Len() {
				at := word.Off() + uint32(i)
				if other := used[at]; other != "" {
					t.Fatalf("slot %d belongs to %s and %s", at, other, name)
				}
				used[at] = name
				slot := tables.Slots[at]
				if maps.SlotOwner(slot) != uint32(index) || maps.SlotTag(slot) != word.Tag() {
					t.Fatalf("slot %d of %s has owner %d and tag %d", at, name, maps.SlotOwner(slot), maps.SlotTag(slot))
				}
				owners[maps.SlotBackend(slot)] |= maps.MakeOwner(uint32(index), 1<<scope)
				if word.Len() < 64 || i%97 == 0 {
					backend := tables.Backends[maps.SlotBackend(slot)]
					text += fmt.Sprintf(" %s,%d", maps.BackendAddrPort(backend), backend.Flags)
				}
			}
		}
		if said[name] != "" {
			t.Fatalf("two services are named %s", name)
		}
		said[name] = text
	}
	for index, want := range owners {
		if got := tables.Backends[index].Owner; got != want {
			t.Fatalf("backend %d is marked %#x, the tables say %#x", index, got, want)
		}
	}
	_ = tables.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		name := textOf(&tables.Names[row.Service])
		if name == "" {
			t.Fatalf("frontend %v leads to service %d, which has no name", maps.AddrPort(key), row.Service)
		}
		said[fmt.Sprintf("%v/%d", maps.AddrPort(key), key.Proto)] = name + " " + maps.KindNames[row.Kind]
	})
	return said
}
