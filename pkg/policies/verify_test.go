package policies

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// Whoever asks gets what differs from the policies in force, and that is mended if he asks for it. While changes
// are not written nothing is compared.
func TestVerify(t *testing.T) {
	r := newRig(t)
	ctx, end := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- r.Controller.Run(ctx, r.around) }()
	verify := func(repair bool, want Checked) {
		t.Helper()
		have, err := r.Controller.Verify(t.Context(), repair)
		if diff := cmp.Diff(want, have); err != nil || diff != "" {
			t.Errorf("error %v, and (-want +have):\n%s", err, diff)
		}
	}
	verify(true, Checked{Waiting: true})
	r.sync()
	r.listPolicies(isolate())
	row := policy.Damage{Map: "policy_peers", Where: "10.0.0.9", Want: "none", Have: "1"}
	mended := row
	mended.Mended = true
	r.harm(row)
	verify(false, Checked{Damage: []policy.Damage{row}})
	if s := r.Status(); s.Damage != 0 {
		t.Errorf("%d damaged rows are counted, and nothing was to be mended", s.Damage)
	}
	verify(true, Checked{Damage: []policy.Damage{mended}})
	verify(true, Checked{})
	if s := r.Status(); s.Damage != 1 || s.Mended != 1 {
		t.Errorf("%d damaged rows are counted, and %d mended, want one", s.Damage, s.Mended)
	}
	// What a damaged row has accepted is judged again, by a generation that nobody had.
	generation := r.given(web)
	r.widen(model.Name{Namespace: "n", Name: "web"}, row)
	verify(true, Checked{Damage: []policy.Damage{mended}})
	again := r.given(web)
	if s := r.Status(); again <= generation || s.Generation != again {
		t.Errorf("generation %d, was %d, and the status says %d", again, generation, s.Generation)
	}
	verify(true, Checked{})
	if still := r.given(web); still != again {
		t.Errorf("generation %d, was %d, and nothing was mended", still, again)
	}
	r.fail(errors.New("no"))
	verify(true, Checked{Waiting: true})
	end()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if _, err := r.Controller.Verify(t.Context(), true); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}
