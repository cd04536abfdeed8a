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
	for name, m := range map[string]*ebpf.Map{"policy_pending": m.PolicyPending, "policy_denials": m.PolicyDenials} {
		if rows, counts, err := c.of(m, name); rows != 0 || !counts || err != nil {
			t.Errorf("%s: %d rows (%v, %v)", name, rows, counts, err)
		}
	}
	if _, counts, err := c.of(m.PolicyPeers, "policy_peers"); counts || err != nil {
		t.Errorf("policy_peers, which the agent writes: %v, %v", counts, err)
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
