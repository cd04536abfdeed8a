package datapath

import (
	"errors"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// remember gives the clients from up to, but not including, to a backend.
func remember(t *testing.T, m *maps.Maps, from, to uint32) {
	t.Helper()
	for n := from; n < to; n++ {
		key := maps.AffinityKey{Client: bpf.MapsAddr{Word: [4]uint32{n}}, Service: 3}
		if err := m.Affinity.Put(key, maps.Affinity{Last: uint64(n), Row: n}); err != nil {
			t.Fatal(err)
		}
	}
}

// remembered counts the clients that have the backend they were given.
func remembered(t *testing.T, m *maps.Maps) (n int) {
	t.Helper()
	var key maps.AffinityKey
	var row maps.Affinity
	rows := m.Affinity.Iterate()
	for rows.Next(&key, &row) {
		if key.Client.Word[0] == row.Row && key.Service == 3 && row.Last == uint64(row.Row) {
			n++
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// Clients keep their backends when a starting agent makes more room, including those that come
// meanwhile, and when the next agent starts, which does not shrink the room.
func TestEnlargeKeepsAffinity(t *testing.T) {
	const before, between = 5000, 10
	p := newMounts(t)
	d := running(t, p)
	remember(t, d.Maps(), 1, 1+before)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	var old *maps.Maps
	came := uint32(1 + before)
	p.failpoint = func(step string) error {
		// By now the programs of some hooks use the new map, those of others the old one.
		if step == "grow: publish affinity" {
			remember(t, old, came, came+between)
			came += between
		}
		return nil
	}
	d = open(t, p.Config)
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	old = d.Maps()
	if err := d.Enlarge(maps.Room{HalfOpen: 20000, Clients: 100000, Datagrams: 1}); err != nil {
		t.Fatal(err)
	}
	rooms := func(m *maps.Maps) [3]uint32 {
		return [3]uint32{m.CtPending.MaxEntries(), m.Affinity.MaxEntries(), m.Frags.MaxEntries()}
	}
	if have, want := rooms(d.Maps()), [3]uint32{32768, 131072, 8192}; have != want {
		t.Errorf("there is room for %d rows, want %d", have, want)
	}
	if n := remembered(t, d.Maps()); n != before+between || came != 1+before+between {
		t.Errorf("%d clients still have their backends, want %d", n, before+between)
	}
	if !usesPinned(t, d) {
		t.Error("the programs do not use the pinned maps")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, p.Config)
	if err := errors.Join(d.Attach(), d.Enlarge(maps.Room{})); err != nil {
		t.Fatal(err)
	}
	if have, want := rooms(d.Maps()), [3]uint32{32768, 131072, 8192}; have != want || remembered(t, d.Maps()) != before+between {
		t.Errorf("after a restart there is room for %d rows, want %d; %d clients still have their backends", have, want, remembered(t, d.Maps()))
	}
}

// An Enlarge that fails at any step leaves the maps as they were.
func TestEnlargeFails(t *testing.T) {
	boom := errors.New("boom")
	for _, fail := range []string{"grow: load", "grow: stage", "grow: devices", "grow: publish ct_pending", "grow: publish affinity", "grow: close"} {
		p := newMounts(t)
		p.failpoint = func(step string) error {
			if step == fail {
				return boom
			}
			return nil
		}
		d := running(t, p)
		remember(t, d.Maps(), 1, 100)
		if err := d.Enlarge(maps.Room{HalfOpen: 1 << 15, Clients: 1 << 17}); !errors.Is(err, boom) {
			t.Fatalf("%s: %v", fail, err)
		}
		if remembered(t, d.Maps()) != 99 || d.Maps().Affinity.MaxEntries() != 65536 || !usesPinned(t, d) {
			t.Errorf("%s: the old maps are not in use", fail)
		}
	}
}

// peersOf reads the classes of addresses through maps that were opened before or after they grew.
func peersOf(t *testing.T, m *maps.EnforceMaps) (n int) {
	t.Helper()
	var key maps.Addr
	var row bpf.MapsPolicyClass
	rows := m.PolicyPeers.Iterate()
	for rows.Next(&key, &row) {
		if row.Class == [2]uint32{key.Word[0], key.Word[0] + 1} {
			n++
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// A map of policies that is full grows, at whichever step a growth before has failed. Its rows stay, programs use
// the map that is pinned, and so does the next agent.
func TestGrowPolicies(t *testing.T) {
	const full = 262144
	boom, fail := errors.New("boom"), ""
	p := newMounts(t)
	p.failpoint = func(step string) error {
		if step == fail {
			return boom
		}
		return nil
	}
	d := running(t, p)
	policyMaps := func() *maps.EnforceMaps {
		t.Helper()
		m, err := d.OpenEnforceMaps()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	m := policyMaps()
	keys, rows := make([]maps.Addr, full), make([]bpf.MapsPolicyClass, full)
	for i := range keys {
		keys[i].Word[0], rows[i].Class = uint32(i), [2]uint32{uint32(i), uint32(i) + 1}
	}
	if _, err := m.PolicyPeers.BatchUpdate(keys, rows, nil); err != nil {
		t.Fatal(err)
	}
	for _, fail = range []string{"grow: create", "grow: load", "grow: stage", "grow: devices", "grow: publish policy_peers", "grow: close"} {
		if grown, err := d.GrowPolicies("policy_peers", 300000); grown || !errors.Is(err, boom) {
			t.Fatalf("%s: %t, %v", fail, grown, err)
		}
		if m := policyMaps(); m.PolicyPeers.MaxEntries() != full || peersOf(t, m) != full || !usesPinned(t, d) {
			t.Errorf("%s: the old map is not in use", fail)
		}
	}
	fail = ""
	began := time.Now()
	if grown, err := d.GrowPolicies("policy_peers", 300000); !grown || err != nil {
		t.Fatalf("%t, %v", grown, err)
	}
	t.Logf("%d rows have twice the room after %v", full, time.Since(began).Round(time.Millisecond))
	if grown, err := d.GrowPolicies("policy_pods", 20000); grown || err != nil {
		t.Errorf("policy_pods: %t, %v", grown, err)
	}
	if m := policyMaps(); m.PolicyPeers.MaxEntries() != 2*full || peersOf(t, m) != full || !usesPinned(t, d) {
		t.Errorf("%d rows of %d, which programs use: %t", peersOf(t, m), m.PolicyPeers.MaxEntries(), usesPinned(t, d))
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, p.Config)
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	if m := policyMaps(); m.PolicyPeers.MaxEntries() != 2*full || peersOf(t, m) != full || !usesPinned(t, d) {
		t.Errorf("after a restart: %d rows of %d, which programs use: %t", peersOf(t, m), m.PolicyPeers.MaxEntries(), usesPinned(t, d))
	}
}
