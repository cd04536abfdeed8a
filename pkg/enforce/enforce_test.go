package enforce

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

// random makes objects from few labels, addresses and ports, so that they often meet.
type random struct{ *rand.Rand }

func (r random) selector() model.Selector {
	if r.IntN(3) == 0 {
		return nil
	}
	return model.Selector{{Label: "app", Operator: model.Operator(r.IntN(2)), Values: []string{fmt.Sprint(r.IntN(3))}}}
}

func (r random) addr() netip.Addr {
	if r.IntN(3) == 0 {
		return netip.AddrFrom16([16]byte{0xfd, 15: byte(1 + r.IntN(8))})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + r.IntN(8))})
}

func (r random) peer(namespace string) model.PolicyPeer {
	if r.IntN(3) > 0 {
		return model.PolicyPeer{Pods: &model.PodSet{Namespace: namespace, Pods: r.selector()}}
	}
	addr := r.addr()
	bits := addr.BitLen() - r.IntN(4)
	if r.IntN(3) == 0 {
		bits = 0
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		panic(err)
	}
	return model.PolicyPeer{Block: &model.Block{Prefix: prefix}}
}

func (r random) policy(namespace, name string) *model.NetworkPolicy {
	p := &model.NetworkPolicy{
		Name: model.Name{Namespace: namespace, Name: name}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSet{Namespace: namespace, Pods: r.selector()},
	}
	for direction := range model.Direction(model.Directions) {
		p.Isolates[direction] = r.IntN(3) > 0
		for number := range r.IntN(3) {
			rule := model.PolicyRule{Number: number, Action: model.Accept, AnyPort: r.IntN(2) == 0, Peers: []model.PolicyPeer{r.peer(namespace)}}
			if !rule.AnyPort {
				first := uint16(1 + r.IntN(3))
				rule.Ports = []model.PortSpan{{Protocol: model.TCP, First: first, Last: first + uint16(r.IntN(2))}}
			}
			if p.Isolates[direction] {
				p.Rules[direction] = append(p.Rules[direction], rule)
			}
		}
	}
	return p
}

func (r random) pod(name model.Name) *model.PolicyPod {
	return &model.PolicyPod{Name: name, Addrs: []netip.Addr{r.addr()}, Labels: map[string]string{"app": fmt.Sprint(r.IntN(3))}}
}

// change changes something about the objects of a compiler, and returns the devices of this node's pods.
func (r random) change(c *policy.Compiler, local map[model.Name]*model.PolicyPod) {
	namespace := fmt.Sprint("n", r.IntN(2))
	c.SetNamespace(namespace, nil)
	switch name := fmt.Sprint("p", r.IntN(4)); r.IntN(6) {
	case 0:
		c.DeletePolicy(model.Name{Namespace: namespace, Name: name})
	case 1, 2:
		c.SetPolicy(r.policy(namespace, name))
	case 3:
		c.DeletePod(model.Name{Namespace: namespace, Name: name})
	case 4:
		c.SetPod(r.pod(model.Name{Namespace: namespace, Name: name}))
	default:
		pod := r.pod(model.Name{Namespace: namespace, Name: "here" + name})
		for _, other := range local {
			if other.Name != pod.Name && other.Addrs[0] == pod.Addrs[0] {
				return
			}
		}
		local[pod.Name] = pod
		c.SetPod(pod)
		c.SetLocal(pod)
	}
}

// devices gives every pod of this node a device.
func devices(local map[model.Name]*model.PolicyPod) map[netip.Addr][]uint32 {
	out := map[netip.Addr][]uint32{}
	for name, pod := range local {
		index := uint32(name.Name[len(name.Name)-1]-'0') + 100
		if name.Namespace == "n1" {
			index += 10
		}
		out[pod.Addrs[0]] = []uint32{index}
	}
	return out
}

func lookup[K, V any](t *testing.T, m *ebpf.Map, key K) (row V, found bool) {
	t.Helper()
	err := m.Lookup(key, &row)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return row, err == nil
}

// decide returns what a version in the maps says, found as the programs do.
func decide(t *testing.T, m *kernel.Maps, version uint32, s bpf.MapsPolicySubject, direction model.Direction, peer netip.Addr, key uint32) (verdict uint32) {
	t.Helper()
	if s.Subject == 0 {
		return 1 << 31
	}
	class, found := lookup[kernel.Addr, bpf.MapsPolicyClass](t, m.PolicyPeers, kernel.AddrOf(peer))
	if !found {
		class, _ = lookup[bpf.MapsPrefixKey, bpf.MapsPolicyClass](t, m.PolicyRegions, kernel.PrefixKey(netip.PrefixFrom(peer, peer.BitLen())))
	}
	view, _ := lookup[bpf.MapsPolicyView, bpf.MapsPolicyClass](t, m.PolicyViews, bpf.MapsPolicyView{Scope: s.Scope, Class: class.Class[version]})
	at := bpf.MapsPolicyDecisionKey{Subject: s.Subject, Class: view.Class[version], Direction: uint32(direction)}
	decision, _ := lookup[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision](t, m.PolicyDecisions, at)
	if decision.Ports[version].Count == 0 {
		at.Class = 0
		decision, _ = lookup[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision](t, m.PolicyDecisions, at)
	}
	verdict = policy.RuleUnknown
	for i := range decision.Ports[version].Count {
		run, _ := lookup[uint32, bpf.MapsPolicyRun](t, m.PolicyRuns, decision.Ports[version].First+i)
		if run.From <= key {
			verdict = run.Verdict
		}
	}
	return verdict
}

// check compares versions in the maps with tables.
func check(t *testing.T, m *kernel.Maps, tables *policy.Tables, at map[netip.Addr][]uint32, versions ...uint32) {
	t.Helper()
	r := random{rand.New(rand.NewPCG(1, 1))}
	for addr, row := range tables.Pods {
		for _, index := range at[addr] {
			pod, found := lookup[uint32, bpf.MapsPolicyPod](t, m.PolicyPods, index)
			if !found {
				t.Fatalf("%v has no row", addr)
			}
			for range 20 {
				peer, direction, port := r.addr(), model.Direction(r.IntN(2)), uint16(r.IntN(6))
				want := tables.Decide(row.Subject, direction, peer, model.TCP, port)
				for _, version := range versions {
					have := decide(t, m, version, pod.Subject[version], direction, peer, 1<<16|uint32(port))
					if rule := tables.Rules[have&^(1<<31)]; have>>31 == 1 != want.Accepted || rule != want.Rule {
						t.Fatalf("version %d, %v, %v %v port %d: %x (%v), want %+v", version, addr, direction, peer, port, have, rule, want)
					}
				}
			}
		}
	}
}

// After every change both versions in the maps say what the tables say, and nothing of former ones is left,
// also if another Writer goes on with the maps.
func TestApply(t *testing.T) {
	rig.Root(t)
	for seed := range uint64(4) {
		m, err := kernel.Create(kernel.Sizes{})
		if err != nil {
			t.Fatal(err)
		}
		r := random{rand.New(rand.NewPCG(seed, 0))}
		local := map[model.Name]*model.PolicyPod{}
		c := policy.New("self", policy.DefaultQuota(), 0)
		w := newWriter(t, m)
		for step := range 60 {
			for range 1 + r.IntN(3) {
				r.change(c, local)
			}
			if step%20 == 19 {
				w = newWriter(t, m)
			}
			change := c.Update()
			unseen(t, w, m, change, c.Tables(), devices(local))
			if err := w.Apply(change, c.Tables(), devices(local)); err != nil {
				t.Fatal(err)
			}
			check(t, m, c.Tables(), devices(local), 0, 1)
			tidy(t, w, m, c.Tables())
			if found, err := w.Verify(c.Tables(), devices(local), false); err != nil || len(found.Damage) > 0 {
				t.Fatalf("damage %+v (%v) right after a change", found, err)
			}
			counted(t, w, m)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// unseen fails if the rows of a change are seen before its version is in force.
func unseen(t *testing.T, w *Writer, m *kernel.Maps, change *policy.Change, tables *policy.Tables, at map[netip.Addr][]uint32) {
	t.Helper()
	before := inForce(t, w, m)
	next, err := w.collect(change, tables, at)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.write(w.maps); err != nil {
		t.Fatal(err)
	}
	after := inForce(t, w, m)
	for what, verdict := range before {
		if after[what] != verdict {
			t.Fatalf("%s: %x before the change is in force, want %x", what, after[what], verdict)
		}
	}
	check(t, m, tables, at, next.version)
	next.release(w.runs)
}

// inForce returns verdicts of the version in force, by what they are about.
func inForce(t *testing.T, w *Writer, m *kernel.Maps) map[string]uint32 {
	t.Helper()
	out := map[string]uint32{}
	var index uint32
	var pod bpf.MapsPolicyPod
	for rows := m.PolicyPods.Iterate(); rows.Next(&index, &pod); {
		r := random{rand.New(rand.NewPCG(1, uint64(index)))}
		for range 20 {
			peer, direction, port := r.addr(), model.Direction(r.IntN(2)), uint32(r.IntN(6))
			out[fmt.Sprint(index, peer, direction, port)] = decide(t, m, w.version, pod.Subject[w.version], direction, peer, 1<<16|port)
		}
	}
	return out
}

// opened returns what a Writer of its maps takes.
func opened(t *testing.T, m *kernel.Maps) *kernel.EnforceMaps {
	t.Helper()
	maps, err := m.OpenEnforceMaps()
	if err != nil {
		t.Fatal(err)
	}
	return maps
}

func newWriter(t *testing.T, m *kernel.Maps) *Writer {
	t.Helper()
	w, err := New(opened(t, m), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// counted fails if a Writer says that the maps have other rows than they have.
func counted(t *testing.T, w *Writer, m *kernel.Maps) {
	t.Helper()
	have := map[string]int{}
	for name, m := range map[string]*ebpf.Map{
		"policy_pods": m.PolicyPods, "policy_peers": m.PolicyPeers, "policy_regions": m.PolicyRegions, "policy_views": m.PolicyViews, "policy_decisions": m.PolicyDecisions,
	} {
		have[name] = count(m)
	}
	led, runs := map[bpf.MapsPolicyPorts]struct{}{}, 0
	decisions, err := all[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision](m.PolicyDecisions)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range decisions {
		led[row.Ports[0]] = struct{}{}
	}
	for at := range led {
		runs += int(at.Count)
	}
	listed, err := m.CountPolicyRows()
	have["policy_runs"] = runs
	if err != nil || !maps.Equal(listed, have) {
		t.Fatalf("without a writer %v are counted (%v), the maps have %v", listed, err, have)
	}
	led[bpf.MapsPolicyPorts{First: w.at[0].first, Count: w.at[0].count}] = struct{}{} // that which accepts all always has one
	have["policy_runs"] = 0
	for at := range led {
		have["policy_runs"] += int(at.Count)
	}
	if said := w.Rows(); !maps.Equal(said, have) {
		t.Fatalf("the writer counts %v, the maps have %v", said, have)
	}
}

func count(m *ebpf.Map) (n int) {
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for rows := m.Iterate(); rows.Next(&key, &value); {
		n++
	}
	return n
}

// tidy fails if the maps have more than the tables.
func tidy(t *testing.T, w *Writer, m *kernel.Maps, tables *policy.Tables) {
	t.Helper()
	used := uint32(0)
	for _, e := range w.at {
		used += e.count
	}
	free := uint32(0)
	for _, e := range w.runs.free {
		free += e.count
	}
	if used+free != m.PolicyRuns.MaxEntries() {
		t.Errorf("%d runs are used and %d free of %d", used, free, m.PolicyRuns.MaxEntries())
	}
	if n := count(m.PolicyPeers); n != len(tables.Peers) {
		t.Errorf("%d peers, want %d", n, len(tables.Peers))
	}
	if n := count(m.PolicyViews); n != len(tables.Views) {
		t.Errorf("%d views, want %d", n, len(tables.Views))
	}
	if n := count(m.PolicyRegions); n > len(tables.Regions)+2 {
		t.Errorf("%d regions, want at most %d", n, len(tables.Regions)+2)
	}
	if n := count(m.PolicyDecisions); n > len(tables.Rows)+2*len(tables.Subjects) {
		t.Errorf("%d decisions, want at most %d", n, len(tables.Rows)+2*len(tables.Subjects))
	}
}
