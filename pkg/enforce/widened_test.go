package enforce

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

// Whatever bit of a row somebody changes, and whatever row he deletes: a pod to which that accepts more than its
// policies is named when it is mended, and another is not named for nothing.
func TestWidened(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	w, local, r := newWriter(t, m), map[model.Name]*model.PolicyPod{}, random{rand.New(rand.NewPCG(1, 2))}
	c := policy.New("self", policy.DefaultQuota(), 0)
	for range 60 {
		r.change(c, local)
	}
	if err := w.Apply(c.Update(), c.Tables(), devices(local)); err != nil {
		t.Fatal(err)
	}
	tables := []*ebpf.Map{m.PolicyPods, m.PolicyPeers, m.PolicyRegions, m.PolicyViews, m.PolicyDecisions, m.PolicyRuns}
	widened, harmless := 0, 0
	for step := range 60 {
		r.damage(t, tables[step%len(tables)])
		accepted := map[string]bool{}
		each(t, w, m, local, func(_ model.Name, what string, verdict uint32) { accepted[what] = verdict>>31 == 1 })
		found, err := w.Verify(c.Tables(), devices(local), true)
		if err != nil {
			t.Fatal(err)
		}
		lost := map[model.Name]struct{}{}
		each(t, w, m, local, func(pod model.Name, what string, verdict uint32) {
			if accepted[what] && verdict>>31 == 0 {
				lost[pod] = struct{}{}
			}
		})
		for pod := range lost {
			if _, named := found.Widened[pod]; !named {
				t.Errorf("%+v has accepted something to pod %v, which is not named", found.Damage, pod)
			}
		}
		widened += len(lost)
		if len(found.Damage) > 0 && len(found.Widened) == 0 {
			harmless++
		}
	}
	if widened < 10 || harmless < 20 {
		t.Errorf("%d pods were accepted something, and %d times nobody was: this proves little", widened, harmless)
	}
}

// damage changes or deletes a row.
func (r random) damage(t *testing.T, of *ebpf.Map) {
	t.Helper()
	key, row, keys := make([]byte, of.KeySize()), make([]byte, of.ValueSize()), [][]byte{}
	rows := of.Iterate()
	for len(keys) < 40 && rows.Next(&key, &row) { // of an array the first are in use
		keys = append(keys, slices.Clone(key))
	}
	if rows.Err() != nil || len(keys) == 0 {
		t.Fatalf("%v has no rows (%v)", of, rows.Err())
	}
	key = keys[r.IntN(len(keys))]
	if r.IntN(4) == 0 && of.Type() != ebpf.Array {
		if err := of.Delete(key); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := of.Lookup(key, &row); err != nil {
		t.Fatal(err)
	}
	for at := r.IntN(2); at < len(row); at += len(row) / 2 { // both versions, so that the change is in force
		row[at&^3] ^= byte(1 << r.IntN(3))
	}
	if of.Type() == ebpf.Array && r.IntN(2) == 0 {
		row[7] ^= 0x80 // the verdict of a run
	}
	if err := of.Put(key, row); err != nil {
		t.Fatal(err)
	}
}

// each calls visit with what is in force for the pods here.
func each(t *testing.T, w *Writer, m *kernel.Maps, local map[model.Name]*model.PolicyPod, visit func(model.Name, string, uint32)) {
	t.Helper()
	at := devices(local)
	for _, name := range slices.SortedFunc(maps.Keys(local), model.Name.Compare) {
		for _, index := range at[local[name].Addrs[0]] {
			verdicts(t, w, m, index, func(what string, verdict uint32) { visit(name, what, verdict) })
		}
	}
}
