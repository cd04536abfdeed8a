package enforce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

// generations returns the generations of pods in force, by the host's end of their devices.
func generations(t *testing.T, w *Writer) map[uint32]uint32 {
	t.Helper()
	rows, err := all[uint32, bpf.MapsPolicyPod](w.maps.PolicyPods)
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint32]uint32{}
	for index, row := range rows {
		out[index] = row.Subject[w.version].Generation
	}
	return out
}

// restart writes what objects come to with a Writer and a Compiler that begin, as after a start of the agent.
func restart(t *testing.T, m *kernel.Maps, audit bool, fill func(*policy.Compiler) map[model.Name]*model.PolicyPod) (*Writer, *policy.Compiler, map[netip.Addr][]uint32) {
	t.Helper()
	w, err := New(opened(t, m), audit, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	highest, err := w.Generation()
	if err != nil {
		t.Fatal(err)
	}
	c := policy.New("self", policy.DefaultQuota(), highest)
	at := devices(fill(c))
	if err := w.Apply(c.Update(), c.Tables(), at); err != nil {
		t.Fatal(err)
	}
	return w, c, at
}

// An agent that starts lets pods keep their generations unless something is denied to them that was accepted, and
// unless what was only audited is enforced. What changes later gives them new ones.
func TestPrevious(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	for _, step := range []struct {
		name       string
		sets       int // that are accepted: the more, the wider
		audit, new bool
	}{
		{"first", 3, false, true}, {"the same", 3, false, false}, {"the same again", 3, false, false}, {"wider", 4, false, false}, {"narrower", 2, false, true},
		{"the same as narrower", 2, false, false}, {"audited", 2, true, true}, {"audited again", 2, true, false}, {"enforced", 2, false, true},
	} {
		before := map[uint32]uint32{}
		if step.name != "first" {
			before = generations(t, newWriter(t, m))
		}
		w, c, at := restart(t, m, step.audit, func(c *policy.Compiler) map[model.Name]*model.PolicyPod {
			local := map[model.Name]*model.PolicyPod{}
			crowded(c, local, step.sets)
			return local
		})
		after := generations(t, w)
		for index, was := range before {
			if is, still := after[index]; still && (is != was) != step.new {
				t.Errorf("%s: pod %d had generation %d and has %d", step.name, index, was, is)
			}
		}
		seen := map[uint32]bool{}
		for index, generation := range after {
			if generation == 0 || seen[generation] {
				t.Errorf("%s: pod %d has generation %d, as another", step.name, index, generation)
			}
			seen[generation] = true
		}
		if found, err := w.Verify(c.Tables(), at, false); err != nil || len(found.Damage) > 0 {
			t.Errorf("%s: damage %+v (%v)", step.name, found, err)
		}
		// A change without a restart, which nobody keeps his generation over.
		if step.name == "the same again" {
			c.SetPolicy(&model.NetworkPolicy{Name: model.Name{Namespace: "n0", Name: "app1"}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "n0", Pods: here()}, Isolates: [2]bool{true, false}})
			if err := w.Apply(c.Update(), c.Tables(), at); err != nil {
				t.Fatal(err)
			}
			for index, is := range generations(t, w) {
				if is == after[index] {
					t.Errorf("pod %d keeps generation %d, and its policies accept less", index, is)
				}
			}
		}
	}
}

// Whatever changed while no agent ran: who keeps his generation has lost nothing.
func TestPreviousRandom(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	keep, lose := 0, 0
	for seed := range uint64(60) {
		before := map[string]uint32{}
		reader := newWriter(t, m)
		was := generations(t, reader)
		for index := range was {
			verdicts(t, reader, m, index, func(what string, verdict uint32) { before[what] = verdict })
		}
		w, _, _ := restart(t, m, false, func(c *policy.Compiler) map[model.Name]*model.PolicyPod {
			// The same beginning, and now and then another end, which is about a few things only.
			local := map[model.Name]*model.PolicyPod{}
			r := random{rand.New(rand.NewPCG(7, 0))}
			for range 40 {
				r.change(c, local)
			}
			r = random{rand.New(rand.NewPCG(seed/2, 1))}
			for range 2 {
				r.change(c, local)
			}
			return local
		})
		for index, is := range generations(t, w) {
			if is != was[index] {
				lose++
				continue
			}
			keep++
			verdicts(t, w, m, index, func(what string, verdict uint32) {
				if before[what]>>31 == 1 && verdict>>31 == 0 {
					t.Fatalf("seed %d: %s is denied, was accepted, and generation %d is the same", seed, what, is)
				}
			})
		}
	}
	if keep < 50 || lose < 20 {
		t.Errorf("%d pods keep their generation, and %d do not: this proves little", keep, lose)
	}
}

// verdicts calls visit with what is in force for a pod.
func verdicts(t *testing.T, w *Writer, m *kernel.Maps, index uint32, visit func(string, uint32)) {
	t.Helper()
	pod, _ := lookup[uint32, bpf.MapsPolicyPod](t, m.PolicyPods, index)
	for i := range byte(9) {
		for _, peer := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, i}), netip.AddrFrom16([16]byte{0xfd, 15: i})} {
			for direction := range model.Direction(model.Directions) {
				for port := range uint32(6) {
					visit(fmt.Sprint(index, peer, direction, port), decide(t, m, w.version, pod.Subject[w.version], direction, peer, 1<<16|port))
				}
			}
		}
	}
}
