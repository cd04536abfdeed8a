package mapstats

import (
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/reasons"
)

// Flows that found no port are news for two minutes, and the first look of an agent counts none of
// those that another agent saw.
func TestRefusedForPorts(t *testing.T) {
	g, at := &Reader{}, time.Unix(1000, 0)
	for _, step := range []struct {
		name    string
		after   time.Duration
		refused uint64 // in all
		want    SnatPorts
	}{
		{"an agent starts", 0, 50, SnatPorts{}},
		{"some are refused", 10 * time.Second, 60, SnatPorts{RefusedLately: 10, RefusedEnd: time.Unix(1130, 0)}},
		{"no more", 119 * time.Second, 60, SnatPorts{RefusedLately: 10, RefusedEnd: time.Unix(1130, 0)}},
		{"it is over when that was said", time.Second, 60, SnatPorts{}},
		{"more", time.Hour, 61, SnatPorts{RefusedLately: 1, RefusedEnd: time.Unix(4850, 0)}},
	} {
		at = at.Add(step.after)
		counters := []reasons.Counter{{Hook: "tc", Reason: "no-port", Packets: step.refused - 7}, {Hook: "tc", Reason: "none", Packets: 9}, {Hook: "xdp", Reason: "no-port", Packets: 7}}
		if got := g.snat(refusedForPorts(counters), at); got.RefusedLately != step.want.RefusedLately || !got.RefusedEnd.Equal(step.want.RefusedEnd) {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
	}
}
