package enforce

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

// Rows that somebody changed, deleted or added are found, and are as they were once they are mended.
func TestVerify(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	w, local := newWriter(t, m), map[model.Name]*model.PolicyPod{}
	c := policy.New("self", policy.DefaultQuota(), 0)
	crowded(c, local, 4)
	if err := w.Apply(c.Update(), c.Tables(), devices(local)); err != nil {
		t.Fatal(err)
	}
	if err := w.SetAny(true); err != nil {
		t.Fatal(err)
	}
	verify := func(repair bool) []policy.Damage {
		t.Helper()
		found, err := w.Verify(c.Tables(), devices(local), repair)
		if err != nil {
			t.Fatal(err)
		}
		return found.Damage
	}
	if found := verify(false); len(found) > 0 {
		t.Fatalf("damage %+v in maps that nobody touched", found)
	}
	for name, of := range map[string]*ebpf.Map{
		"policy_state": m.PolicyState, "policy_pods": m.PolicyPods, "policy_peers": m.PolicyPeers, "policy_regions": m.PolicyRegions,
		"policy_views": m.PolicyViews, "policy_decisions": m.PolicyDecisions, "policy_runs": m.PolicyRuns,
	} {
		for what, damage := range map[string]func(key, row []byte) error{
			"changed": func(key, row []byte) error {
				row[0] ^= 1
				return of.Put(key, row)
			},
			"deleted": func(key, _ []byte) error { return of.Delete(key) },
			"added": func(key, row []byte) error {
				key[len(key)-1] ^= 0x80 // the last byte of an address, else one of a number that is not in use
				if name == "policy_regions" {
					key[0] = 128
				}
				return of.Put(key, row)
			},
		} {
			if of.Type() == ebpf.Array && what != "changed" {
				continue
			}
			key, row := make([]byte, of.KeySize()), make([]byte, of.ValueSize())
			if rows := of.Iterate(); !rows.Next(&key, &row) {
				t.Fatalf("%s has no row (%v)", name, rows.Err())
			}
			if err := damage(slices.Clone(key), slices.Clone(row)); err != nil {
				t.Fatalf("%s: %s: %v", name, what, err)
			}
			if found := verify(false); len(found) != 1 || found[0].Map != name || found[0].Mended {
				t.Errorf("%s: a row is %s, found %+v", name, what, found)
			}
			if found := verify(true); len(found) != 1 || !found[0].Mended {
				t.Errorf("%s: a row is %s, mended %+v", name, what, found)
			}
			if found := verify(false); len(found) > 0 {
				t.Errorf("%s: a row was %s, after it was mended there is %+v", name, what, found)
			}
			check(t, m, c.Tables(), devices(local), 0, 1)
		}
	}
}
