package mapstats

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// Rows that programs make are counted at most every ten seconds, and those of other maps never.
func TestRowCounts(t *testing.T) {
	rig.Root(t)
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	at, c := time.Unix(1000, 0), newRowCounts()
	c.now = func() time.Time { return at }
	made := uint32(0)
	for _, step := range []struct {
		after      time.Duration
		rows, want int
	}{{0, 3, 3}, {9 * time.Second, 2, 3}, {time.Second, 0, 5}, {time.Hour, 300, 305}} {
		for range step.rows {
			made++
			if err := m.PolicyFlows.Put(maps.Flow{Saddr: bpf.MapsAddr{Word: [4]uint32{made}}}, maps.PolicyFlow{}); err != nil {
				t.Fatal(err)
			}
		}
		at = at.Add(step.after)
		if rows, counts, err := c.of(m.PolicyFlows, "policy_flows"); rows != step.want || !counts || err != nil {
			t.Errorf("%v later: %d rows (%v, %v), want %d", step.after, rows, counts, err, step.want)
		}
	}
	for name, m := range map[string]*ebpf.Map{"policy_shares": m.PolicyShares, "policy_pending": m.PolicyPending, "policy_denials": m.PolicyDenials} {
		if rows, counts, err := c.of(m, name); rows != 0 || !counts || err != nil {
			t.Errorf("%s: %d rows (%v, %v)", name, rows, counts, err)
		}
	}
	if _, counts, err := c.of(m.PolicyPeers, "policy_peers"); counts || err != nil {
		t.Errorf("policy_peers, which the agent writes: %v, %v", counts, err)
	}
}

// Without an agent all rows of policies are counted.
func TestReadPolicies(t *testing.T) {
	rig.Root(t)
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := rig.BPFFS(t)
	if err := m.Pin(dir); err != nil {
		t.Fatal(err)
	}
	ports, later := bpf.MapsPolicyPorts{First: 7, Count: 3}, bpf.MapsPolicyPorts{First: 20, Count: 2}
	for key, row := range map[bpf.MapsPolicyDecisionKey]bpf.MapsPolicyDecision{
		{Subject: 1}:               {Ports: [2]bpf.MapsPolicyPorts{ports, ports}},
		{Subject: 1, Direction: 1}: {Ports: [2]bpf.MapsPolicyPorts{ports, later}}, // a change is being written
		{Subject: 2}:               {Ports: [2]bpf.MapsPolicyPorts{{}, later}},
	} {
		if err := m.PolicyDecisions.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
	for number := range uint32(9) {
		for last, rows := range []*ebpf.Map{m.PolicyPods, m.PolicyPeers, m.PolicyRegions, m.PolicyViews, m.PolicyFlows, m.PolicyShares, m.PolicyPending, m.PolicyDenials} {
			if key := make([]byte, rows.KeySize()); int(number) <= last {
				key[0] = byte(number)
				if err := rows.Put(key, make([]byte, rows.ValueSize())); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	pinned, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"policy_decisions": 3, "policy_runs": 5,
		"policy_pods": 1, "policy_peers": 2, "policy_regions": 3, "policy_views": 4, "policy_flows": 5, "policy_shares": 6, "policy_pending": 7, "policy_denials": 8,
	}
	for _, m := range pinned.Maps {
		n, listed := want[m.Name]
		switch {
		case listed && m.Entries == nil:
			t.Errorf("%s: its rows are not counted", m.Name)
		case listed && *m.Entries != n:
			t.Errorf("%s: %d rows, of %d", m.Name, *m.Entries, n)
		}
	}
}

// A map that evicts and does not count it is full by design, and no trouble.
func TestInTrouble(t *testing.T) {
	var have []string
	for _, m := range InTrouble([]Map{
		{Name: "policy_pending", Type: ebpf.LRUHash.String(), Pressure: 1}, {Name: "ct_pending", Type: ebpf.LRUHash.String(), Pressure: 1, Evictions: new(uint64)},
		{Name: "policy_peers", Type: ebpf.Hash.String(), Pressure: 0.95}, {Name: "policy_views", Type: ebpf.Hash.String(), Pressure: 0.5},
	}) {
		have = append(have, m.Name)
	}
	if want := []string{"ct_pending", "policy_peers"}; !slices.Equal(have, want) {
		t.Errorf("%v, want %v", have, want)
	}
}
