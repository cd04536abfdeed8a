package policies

import (
	"errors"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// TestExpel checks that pods have to pass the programs before a policy about them is written, and that this
// is tried again if it fails.
func TestExpel(t *testing.T) {
	r := newRig(t)
	web, other := model.Name{Namespace: "n", Name: "web"}, model.Name{Namespace: "n", Name: "new"}
	asked, written := 0, 0
	var refusal error
	r.around.Expel = func() error {
		asked++
		written = r.applied
		if passing, known := r.Passing(web); !passing || !known {
			t.Errorf("when connections are to leave, a pod with a policy has to pass: %t, known %t", passing, known)
		}
		return refusal
	}
	if _, known := r.Passing(web); known {
		t.Error("it is known before anything is")
	}
	r.sync()
	r.listPolicies()
	r.step()
	for _, pod := range []model.Name{web, other} {
		if passing, known := r.Passing(pod); passing || !known || asked > 0 {
			t.Errorf("without policies, %s: %t, known %t; asked %d times to leave", pod, passing, known, asked)
		}
	}
	r.listPolicies(isolate())
	before := r.applied
	r.step()
	if asked != 1 || written != before || r.applied != before+1 {
		t.Errorf("asked %d times to leave, after %d of %d changes", asked, written, r.applied)
	}
	if passing, _ := r.Passing(other); !passing {
		t.Error("a pod of which nothing is known need not pass")
	}
	second := isolate()
	second.Name.Name = "second"
	r.listPolicies(isolate(), second)
	r.step()
	if asked != 1 {
		t.Error("it is asked to leave although a policy was about the pod before")
	}

	r.listPolicies()
	r.step()
	refusal = errors.New("stuck")
	r.listPolicies(isolate())
	before = r.applied
	if err := r.Controller.step(r.around, nil); err == nil || !strings.Contains(r.Status().Error, "stuck") || r.applied != before+1 || !r.Judged(web, "", false) {
		t.Errorf("%v, status %+v, %d changes written", err, r.Status(), r.applied-before)
	}
	refusal = nil
	r.step()
	if asked != 3 || r.Status().Error != "" {
		t.Errorf("asked %d times, status %+v", asked, r.Status())
	}
}

// TestPassingUntilWritten checks that a pod that policies are no longer about has to pass until that is
// written.
func TestPassingUntilWritten(t *testing.T) {
	r := newRig(t)
	web := model.Name{Namespace: "n", Name: "web"}
	r.sync()
	r.listPolicies(isolate())
	r.step()
	r.fail(errors.New("full"))
	r.listPolicies()
	if err := r.Controller.step(r.around, nil); err == nil {
		t.Fatal("it does not fail")
	}
	if passing, _ := r.Passing(web); !passing {
		t.Error("it need not pass, although what was written still judges it")
	}
	r.fail(nil)
	r.step()
	if passing, _ := r.Passing(web); passing {
		t.Error("it has to pass without policies")
	}
}
