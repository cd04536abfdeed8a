package sockmap

import (
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// TestProve checks that this kernel passes the proof and that it finds the known differences from
// TCP. All kernels have the last two; FIONREAD differs by kernel, and some newer ones count
// everything.
func TestProve(t *testing.T) {
	rig.MapIterators(t)
	differences, err := sockmap.Prove(sockmap.DefaultLimits())
	t.Logf("%q", differences)
	last := max(len(differences)-2, 0)
	if err != nil || last > 1 || len(differences) < 2 || !strings.HasPrefix(differences[last], "MSG_WAITALL ") || !strings.HasPrefix(differences[last+1], "a signal ends ") ||
		last == 1 && !strings.HasPrefix(differences[0], "FIONREAD counts only data that ") {
		t.Errorf("%q, %v", differences, err)
	}
}
