package datapath

import (
	"errors"
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
	const tcp, udp, fin, rst = 6, 17, uint16(bpf.MapsPolicyFlowEndPOLICY_FIN), uint16(bpf.MapsPolicyFlowEndPOLICY_RST)
	for port, f := range map[uint16]struct {
		proto uint8
		idle  uint32
		ends  uint16
	}{
		1: {tcp, 0, 0}, 2: {tcp, 80000, 0}, 3: {tcp, 90000, 0}, 4: {tcp, 3000, fin}, 5: {tcp, 4000, fin << 1}, 6: {tcp, 50, fin | fin<<1}, 7: {tcp, 70, fin | fin<<1},
		8: {tcp, 50, rst}, 9: {tcp, 70, rst << 1}, 10: {udp, 170, 0}, 11: {udp, 190, 0},
	} {
		if err := m.PolicyFlows.Put(bpf.MapsFlow{Proto: f.proto, Sport: port}, bpf.MapsPolicyFlow{Seen: now - f.idle, Ends: f.ends}); err != nil {
			t.Fatal(err)
		}
	}

	sharePolicyFlows(t, m, now)

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
	flows := map[uint16]bool{}
	var flow bpf.MapsFlow
	var judged bpf.MapsPolicyFlow
	for rows := m.PolicyFlows.Iterate(); rows.Next(&flow, &judged); {
		flows[flow.Sport] = true
	}
	shares, err := m.SharesOfFlows()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fairleadmaps.SharesOfFlows{Rows: 9, Of: 262144, Pods: map[uint32]int{7: 2, 8: 1, 9: 0}}, shares); diff != "" {
		t.Errorf("shares of pods (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff([]uint16{1, 2, 4, 6, 8, 10, 101, 102, 104}, slices.Sorted(maps.Keys(flows))); diff != "" {
		t.Errorf("flows of pods with policies (-want +have):\n%s", diff)
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

// sharePolicyFlows makes flows of pods 7 and 8, of one that is gone, and wrong counts of them. Pod 9 has none.
func sharePolicyFlows(t *testing.T, m *fairleadmaps.Maps, now uint32) {
	t.Helper()
	var errs []error
	for _, pod := range []uint32{7, 8, 9} {
		errs = append(errs, m.PolicyPods.Put(pod, bpf.MapsPolicyPod{}))
	}
	for owner, row := range map[uint32]bpf.MapsPolicyShare{0: {Rows: 1000, Since: -5}, 7: {Rows: 10, Since: 10}, 8: {Since: -1}, 9: {Rows: 1}, 66: {Rows: 1}} {
		errs = append(errs, m.PolicyShares.Put(owner, row))
	}
	for port, flow := range map[uint16]bpf.MapsPolicyFlow{
		101: {Owner: 7, Seen: now}, 102: {Owner: 7, Seen: now}, 103: {Owner: 7, Seen: now - 1000}, 104: {Owner: 8, Seen: now}, 105: {Owner: 66, Seen: now},
	} {
		errs = append(errs, m.PolicyFlows.Put(bpf.MapsFlow{Proto: 17, Sport: port}, flow))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
