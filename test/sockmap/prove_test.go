package sockmap

import (
	"testing"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// This kernel is fit, and whoever asks in the cgroup of its sockets is told so.
func TestProve(t *testing.T) {
	rig.Root(t)
	cgroup := rig.NewCgroup(t)
	if out := rig.Child(t, cgroup, nil, "prove", cgroup.Path()); out != "fit\n" {
		t.Error(out)
	}
}

// Where programs do not see the sockets nothing is proven.
func TestProveElsewhere(t *testing.T) {
	rig.Root(t)
	if err := sockmap.Prove(rig.NewCgroup(t).Path(), sockmap.DefaultLimits()); err == nil {
		t.Error("it is said to be fit")
	}
}
