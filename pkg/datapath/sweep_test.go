package datapath

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	fairleadmaps "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
	"fairlead.io/fairlead/test/rig"
)

// Sweep deletes only rows that expired long ago, and counts them as deleted rather than evicted.
func TestSweep(t *testing.T) {
	rig.Root(t)
	m, err := fairleadmaps.Create(fairleadmaps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	tick, err := ticks.Measure()
	if err != nil {
		t.Fatal(err)
	}
	now, err := tick.Now()
	if err != nil {
		t.Fatal(err)
	}
	var clock unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &clock); err != nil {
		t.Fatal(err)
	}
	tables, err := m.Tables()
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	tables.Services[1].AffinitySeconds, tables.Services[1].AffinityEpoch = 3600, 7
	for client, c := range map[uint32]struct {
		service uint32
		idle    time.Duration
		epoch   uint32
	}{
		1: {1, 0, 7}, 2: {1, 3601 * time.Second, 7}, 3: {1, 4100 * time.Second, 7}, 4: {1, 4300 * time.Second, 7},
		5: {2, 500 * time.Second, 0}, 6: {2, 700 * time.Second, 0}, // a service that no longer has affinity
		7: {1 << 23, 700 * time.Second, 0}, 8: {1, -time.Second, 7}, // a packet came after the clock was read
		9: {1, 500 * time.Second, 6}, 10: {1, 700 * time.Second, 6}, // forgotten
	} {
		key := fairleadmaps.AffinityKey{Client: bpf.MapsAddr{Word: [4]uint32{client}}, Service: c.service}
		row := fairleadmaps.Affinity{Last: uint64(clock.Nano()) - uint64(c.idle), Epoch: c.epoch}
		if err := m.Affinity.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
	for id, idle := range map[uint32]uint32{1: 0, 2: 31, 3: 55, 4: 70, 5: 100000} {
		row := fairleadmaps.DatagramFlow{Seen: now - idle}
		if err := m.Frags.Put(fairleadmaps.Datagram{Id: id}, row); err != nil {
			t.Fatal(err)
		}
	}

	if err := (&Datapath{shared: &shared{maps: m}}).Sweep(); err != nil {
		t.Fatal(err)
	}
	clients, datagrams := map[uint32]bool{}, map[uint32]bool{}
	var key fairleadmaps.AffinityKey
	var row fairleadmaps.Affinity
	for rows := m.Affinity.Iterate(); rows.Next(&key, &row); {
		clients[key.Client.Word[0]] = true
	}
	var datagram fairleadmaps.Datagram
	var ports fairleadmaps.DatagramFlow
	for rows := m.Frags.Iterate(); rows.Next(&datagram, &ports); {
		datagrams[datagram.Id] = true
	}
	if diff := cmp.Diff([]uint32{1, 2, 3, 5, 8, 9}, slices.Sorted(maps.Keys(clients))); diff != "" {
		t.Errorf("clients (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff([]uint32{1, 2, 3}, slices.Sorted(maps.Keys(datagrams))); diff != "" {
		t.Errorf("datagrams (-want +have):\n%s", diff)
	}
	for name, want := range map[string]uint64{"affinity": 4, "frags": 2} {
		if have, err := fairleadmaps.ReadLruStats(m.LruStats, name); err != nil || have.Deleted != want || have.Made != 0 {
			t.Errorf("%s: %+v (%v), want %d deleted", name, have, err, want)
		}
	}
}
