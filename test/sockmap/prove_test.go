package sockmap

import (
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// This kernel is fit, and differs in what is known of it: all have the latter two, and in the first they differ from each other.
func TestProve(t *testing.T) {
	rig.Root(t)
	differences, err := sockmap.Prove(sockmap.DefaultLimits())
	if err != nil || len(differences) != 3 || !strings.HasPrefix(differences[0], "FIONREAD counts only data that ") ||
		!strings.HasPrefix(differences[1], "MSG_WAITALL ") || !strings.HasPrefix(differences[2], "a signal ends ") {
		t.Errorf("%q, %v", differences, err)
	}
}
