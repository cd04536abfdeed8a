package sockmap

import (
	"testing"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// This kernel is fit.
func TestProve(t *testing.T) {
	rig.Root(t)
	if err := sockmap.Prove(sockmap.DefaultLimits()); err != nil {
		t.Error(err)
	}
}
