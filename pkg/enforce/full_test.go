package enforce

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

// shrink has a map of policies with room for so many rows.
func shrink(t *testing.T, at **ebpf.Map, rows uint32) {
	t.Helper()
	info, err := (*at).Info()
	if err != nil {
		t.Fatal(err)
	}
	small, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: (*at).Type(), KeySize: (*at).KeySize(), ValueSize: (*at).ValueSize(), MaxEntries: rows, Flags: uint32(info.Flags),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := (*at).Close(); err != nil {
		t.Fatal(err)
	}
	*at = small
}

// here selects the pods of this node.
func here() model.Selector {
	return model.Selector{{Label: "here", Operator: model.In, Values: []string{"yes"}}}
}

// crowded returns policies about pods here that accept many sets of pods of a namespace, blocks and ports.
func crowded(c *policy.Compiler, local map[model.Name]*model.PolicyPod, sets int) {
	c.SetNamespace("n0", nil)
	for i := range sets {
		app := fmt.Sprint("app", i)
		c.SetPod(&model.PolicyPod{Name: model.Name{Namespace: "n0", Name: app}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}, Labels: map[string]string{"app": app}})
		only := model.PolicyRule{Action: model.Accept, Ports: []model.PortSpan{{Protocol: model.TCP, First: uint16(1 + 2*i), Last: uint16(1 + 2*i)}}, Peers: []model.PolicyPeer{
			{Pods: &model.PodSet{Namespace: "n0", Pods: model.Selector{{Label: "app", Operator: model.In, Values: []string{app}}}}},
			{Block: &model.Block{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)}},
		}}
		p := &model.NetworkPolicy{Name: model.Name{Namespace: "n0", Name: app}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "n0", Pods: here()}}
		p.Isolates[model.Ingress] = true
		p.Rules[model.Ingress] = []model.PolicyRule{only}
		c.SetPolicy(p)
	}
	for i := range sets {
		pod := &model.PolicyPod{Name: model.Name{Namespace: "n0", Name: fmt.Sprint("p", i)}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})}, Labels: map[string]string{"here": "yes"}}
		local[pod.Name] = pod
		c.SetPod(pod)
		c.SetLocal(pod)
	}
}

// notWider fails if what is in force for any pod accepts more than tables do.
func notWider(t *testing.T, w *Writer, m *kernel.Maps, tables *policy.Tables, at map[netip.Addr][]uint32) {
	t.Helper()
	for addr, row := range tables.Pods {
		pod, _ := lookup[uint32, bpf.MapsPolicyPod](t, m.PolicyPods, at[addr][0])
		if (pod == bpf.MapsPolicyPod{}) {
			continue // everything is denied to it
		}
		for direction := range model.Direction(model.Directions) {
			for i := range byte(10) {
				for port := range uint16(20) {
					peer := netip.AddrFrom4([4]byte{10, 1, 0, i})
					have := decide(t, m, w.version, pod.Subject[w.version], direction, peer, 1<<16|uint32(port))
					if have>>31 == 1 && !tables.Decide(row.Subject, direction, peer, model.TCP, port).Accepted {
						t.Errorf("%v, %v %v port %d is accepted", addr, direction, peer, port)
					}
				}
			}
		}
	}
}

// sizeOf gives a Writer's maps few rows in one of them.
func sizeOf(t *testing.T, m *kernel.Maps, name string, rows uint32) **ebpf.Map {
	t.Helper()
	at := map[string]**ebpf.Map{
		"policy_peers": &m.PolicyPeers, "policy_regions": &m.PolicyRegions, "policy_views": &m.PolicyViews, "policy_decisions": &m.PolicyDecisions,
		"policy_runs": &m.PolicyRuns, "policy_pods": &m.PolicyPods,
	}[name]
	shrink(t, at, rows)
	return at
}

// A map that is full grows at once to where there is room, with the rows of before, and what is in force is what the tables
// say. If it cannot grow, the error says why beside what is full.
func TestGrow(t *testing.T) {
	rig.Root(t)
	const few, many = 2, 9
	for name, rows := range map[string]uint32{"policy_peers": 3, "policy_regions": 5, "policy_views": 3, "policy_decisions": 6, "policy_runs": 10} {
		t.Run(name, func(t *testing.T) {
			m, err := kernel.Create(kernel.Sizes{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			at := sizeOf(t, m, name, rows)
			boom, fails, times := errors.New("boom"), true, 0
			grow := func(full string, rows uint32) (*kernel.EnforceMaps, error) {
				if fails {
					return nil, boom
				}
				times++
				grown, names, err := m.GrownPolicies(full, rows)
				if err != nil {
					return nil, err
				}
				m.Exchange(grown, names)
				return opened(t, m), grown.Close()
			}
			w, err := New(opened(t, m), false, grow)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
			c, local := policy.New("self", policy.DefaultQuota(), 0), map[model.Name]*model.PolicyPod{}
			crowded(c, local, many)
			change := c.Update()
			if err := w.Apply(change, c.Tables(), devices(local)); !errors.Is(err, boom) || !strings.Contains(err.Error(), "the map "+name+" is full") {
				t.Fatalf("error %v", err)
			}
			fails = false
			if err := w.Apply(change, c.Tables(), devices(local)); err != nil {
				t.Fatal(err)
			}
			if has := (*at).MaxEntries(); times != 1 || has < 2*rows {
				t.Errorf("it has grown %d times, from %d rows to %d", times, rows, has)
			}
			check(t, m, c.Tables(), devices(local), 0, 1)
			tidy(t, w, m, c.Tables())
			counted(t, w, m)
			// What comes after finds the maps as if they had always been so large.
			for i := few; i < many; i++ {
				c.DeletePolicy(model.Name{Namespace: "n0", Name: fmt.Sprint("app", i)})
			}
			if err := w.Apply(c.Update(), c.Tables(), devices(local)); err != nil {
				t.Fatal(err)
			}
			check(t, m, c.Tables(), devices(local), 0, 1)
			tidy(t, w, m, c.Tables())
			counted(t, w, m)
		})
	}
}

// If any of the maps is full and cannot grow, what was in force stays in force for the pods that are known, others are denied
// everything, and the error says which map it is and what to do. It ends with the policies that were too many.
func TestFull(t *testing.T) {
	rig.Root(t)
	const few, many = 2, 9
	for name, rows := range map[string]uint32{
		"policy_peers": 5, "policy_regions": 8, "policy_views": 8, "policy_decisions": 12, "policy_runs": 24, "policy_pods": 5,
	} {
		t.Run(name, func(t *testing.T) {
			m, err := kernel.Create(kernel.Sizes{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			sizeOf(t, m, name, rows)
			w, local := newWriter(t, m), map[model.Name]*model.PolicyPod{}
			c := policy.New("self", policy.DefaultQuota(), 0)
			crowded(c, local, few)
			change := c.Update()
			at := devices(local)
			if err := w.Apply(change, c.Tables(), at); err != nil {
				t.Fatal(err)
			}
			before := inForce(t, w, m)

			more := policy.New("self", policy.DefaultQuota(), 1000)
			manyLocal := maps.Clone(local)
			crowded(more, manyLocal, many)
			w.fresh = true // the other compiler's numbers are its own
			err = w.Apply(more.Update(), more.Tables(), devices(manyLocal))
			if err == nil || !strings.Contains(err.Error(), "the map "+name+" is full") || !strings.Contains(err.Error(), "stay in force") {
				t.Fatalf("error %v", err)
			}
			for what, verdict := range inForce(t, w, m) {
				if was, known := before[what]; known && was != verdict {
					t.Errorf("%s: %x, want %x as before", what, verdict, was)
				}
			}
			notWider(t, w, m, more.Tables(), devices(manyLocal))

			again := policy.New("self", policy.DefaultQuota(), 2000)
			clear(local)
			crowded(again, local, few)
			change = again.Update()
			if err := w.Apply(change, again.Tables(), devices(local)); err != nil {
				t.Fatal(err)
			}
			check(t, m, again.Tables(), devices(local), 0, 1)
			tidy(t, w, m, again.Tables())
		})
	}
}
