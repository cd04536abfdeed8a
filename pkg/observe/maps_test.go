package observe

import (
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/mapstats"
)

// A map degrades the node if it evicts so much that clients notice, and the sentence says what to
// do.
func TestCrowdedMapsDegrade(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lately uint64
		want   string // in the sentence; "" for none
	}{
		{"ct_pending", 0, ""}, {"ct_pending", 163, ""},
		{"ct_pending", 164, "conntrack-max"}, {"affinity", 164, "session affinity"}, {"frags", 164, "fragments"},
	} {
		s := sampleStatus()
		s.Maps = []mapstats.Map{{Name: tt.name, Capacity: 16384, EvictedLately: tt.lately, EvictionsEnd: time.Unix(1000, 0)}}
		s.FindProblems()
		said := strings.Join(s.Degraded, " ")
		if (tt.want == "") != (said == "") || !strings.Contains(said, tt.want) {
			t.Errorf("%s with %d evictions: %q, want %q", tt.name, tt.lately, said, tt.want)
		}
		if said != "" && !strings.Contains(said, "this is over by 1970-01-01T00:16:40Z.") {
			t.Errorf("no end in sight: %q", said)
		}
	}
}
