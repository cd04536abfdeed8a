package datapath

import (
	"errors"
	"testing"

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
