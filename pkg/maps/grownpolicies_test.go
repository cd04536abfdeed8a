package maps

import (
	"encoding/binary"
	"maps"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/test/rig"
)

// everyRow returns the rows of a map.
func everyRow(t *testing.T, m *ebpf.Map) map[string]string {
	t.Helper()
	out := map[string]string{}
	key, row := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		out[string(key)] = string(row)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// A map of policies that has grown has the rows of before, and the other maps of the set are the same.
func TestGrownPolicies(t *testing.T) {
	rig.Root(t)
	m, _ := create(t, Sizes{})
	for _, name := range []string{"policy_peers", "policy_regions", "policy_views", "policy_decisions", "policy_runs"} {
		t.Run(name, func(t *testing.T) {
			var from *ebpf.Map
			for _, info := range m.All() {
				if info.Name == name {
					from = info.Map
				}
			}
			const rows = 5000 // more than are copied at once
			for i := range uint32(rows) {
				key, row := make([]byte, from.KeySize()), make([]byte, from.ValueSize())
				at := key
				if from.Type() == ebpf.LPMTrie { // the length of a prefix comes first
					binary.NativeEndian.PutUint32(key, 32)
					at = key[4:]
				}
				binary.NativeEndian.PutUint32(at, i)
				binary.NativeEndian.PutUint32(row, i+7)
				if err := from.Put(key, row); err != nil {
					t.Fatal(err)
				}
			}
			want := everyRow(t, from)
			if from.Type() != ebpf.Array && len(want) != rows {
				t.Fatalf("%d rows", len(want))
			}
			grown, names, err := m.GrownPolicies(name, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer grown.Close()
			if len(names) != 1 || names[0] != name {
				t.Errorf("%v have grown", names)
			}
			theirs := grown.All()
			for i, info := range m.All() {
				if was, is := info.Map.MaxEntries(), theirs[i].Map.MaxEntries(); info.Name == name && is != 2*was || info.Name != name && is != was {
					t.Errorf("%s had %d rows and has %d", info.Name, was, is)
				}
				if info.Name != name {
					continue
				}
				have := everyRow(t, theirs[i].Map)
				if info.Map.Type() == ebpf.Array {
					maps.DeleteFunc(have, func(key, _ string) bool { return binary.NativeEndian.Uint32([]byte(key)) >= info.Map.MaxEntries() })
				}
				if !maps.Equal(want, have) {
					t.Errorf("%s has other rows", name)
				}
			}
		})
	}
	for _, name := range []string{"policy_pods", "policy_flows", "svcs", "none"} {
		if grown, names, err := m.GrownPolicies(name, 0); grown != nil || names != nil || err != nil {
			t.Errorf("%s: %v, %v, %v", name, grown, names, err)
		}
	}
	grown, _, err := m.GrownPolicies("policy_views", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer grown.Close()
	if has := grown.PolicyViews.MaxEntries(); has != 1<<20 {
		t.Errorf("a map that should have 2^30 rows has %d", has)
	}
	most := *m
	large, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: 8, MaxEntries: 1 << 22, Flags: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	most.PolicyPeers = large
	if grown, names, err := most.GrownPolicies("policy_peers", 1<<23); grown != nil || names != nil || err != nil {
		t.Errorf("a map of 2^22 rows: %v, %v, %v", grown, names, err)
	}
}
