package policies

import (
	"errors"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
)

// The oldest change that is not in force is the one that counts, also while it is compiled and after a failure.
func TestLag(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(1000+seconds, 0) }
	var l lag
	failed := errors.New("no room")
	for _, step := range []struct {
		name   string
		do     func() (time.Duration, bool)
		oldest time.Time
		waited time.Duration
		counts bool
	}{
		{"one is seen", func() (time.Duration, bool) { l.see(at(0)); return 0, false }, at(0), 0, false},
		{"and another", func() (time.Duration, bool) { l.see(at(1)); return 0, false }, at(0), 0, false},
		{"they are taken, and a third is seen", func() (time.Duration, bool) { l.take(); l.see(at(2)); return 0, false }, at(0), 0, false},
		{"they are written", func() (time.Duration, bool) { return l.end(at(3), true, nil) }, at(2), 3 * time.Second, true},
		{"the third fails", func() (time.Duration, bool) { l.take(); return l.end(at(4), true, failed) }, at(2), 0, false},
		{"a fourth is seen", func() (time.Duration, bool) { l.see(at(5)); return 0, false }, at(2), 0, false},
		{"both are written, and nothing more is compiled", func() (time.Duration, bool) { l.take(); return l.end(at(9), false, nil) }, time.Time{}, 7 * time.Second, true},
		{"one changes nothing", func() (time.Duration, bool) { l.see(at(10)); l.take(); return l.end(at(11), false, nil) }, time.Time{}, time.Second, false},
		{"nothing was seen", func() (time.Duration, bool) { l.take(); return l.end(at(12), true, nil) }, time.Time{}, 0, false},
	} {
		waited, counts := step.do()
		if !l.oldest().Equal(step.oldest) || counts != step.counts || counts && waited != step.waited {
			t.Errorf("%s: waited %v (counts: %v), the oldest since %v", step.name, waited, counts, l.oldest())
		}
	}
}

// What is not delivered yet or cannot be written waits, is shown as waiting, and is reported once it is in force.
func TestWaiting(t *testing.T) {
	r := newRig(t)
	var reported []time.Duration
	r.around.Applied = func(waited time.Duration) { reported = append(reported, waited) }
	begun := r.Status().OldestChange
	if begun.IsZero() {
		t.Fatal("nothing waits, and nothing was compiled")
	}
	check := func(when string, waits bool, count int) {
		t.Helper()
		if status := r.Status(); status.OldestChange.IsZero() == waits || len(reported) != count {
			t.Errorf("%s: %v, reported %v", when, status.OldestChange, reported)
		}
	}
	r.sync()
	r.step()
	check("without policies", true, 0)
	r.listPolicies(isolate("client"))
	r.step()
	check("without the pods of all nodes", true, 0)
	if oldest := r.Status().OldestChange; !oldest.Equal(begun) {
		t.Errorf("the oldest change is of %v, want %v", oldest, begun)
	}
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	check("in force", false, 1)
	status := r.Status()
	if status.Generation <= 41 || status.Rows["policy_peers"] != len(r.tables.Peers) || status.Errors != 0 {
		t.Errorf("generation %d, rows %v of %d peers, %d errors", status.Generation, status.Rows, len(r.tables.Peers), status.Errors)
	}
	r.step()
	check("nothing changed", false, 1)

	r.kernel.fail(errors.New("no room"))
	r.SetPod(peer("other"))
	for range 2 {
		if err := r.Controller.step(r.around, nil); err == nil {
			t.Fatal("a change that cannot be written is")
		}
	}
	check("with an error", true, 1)
	if n := r.Status().Errors; n != 2 {
		t.Errorf("%d errors, want 2", n)
	}
	r.kernel.fail(nil)
	r.step()
	check("with none any longer", false, 2)
}

// A rule has no name while the numbers in the maps may be those of the agent before.
func TestRuleBeforeTheFirstChange(t *testing.T) {
	r := newRig(t)
	r.sync()
	r.listPolicies(isolate("client"))
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.kernel.fail(errors.New("no room"))
	named := func() (n int) {
		for number := range uint32(20) {
			if rule, found := r.Rule(number); found && rule.Object() == "networkpolicy n/p" {
				n++
			}
		}
		return n
	}
	if err := r.Controller.step(r.around, nil); err == nil || named() != 0 {
		t.Errorf("error %v, and %d rules have names", err, named())
	}
	r.kernel.fail(nil)
	r.step()
	if named() == 0 {
		t.Error("no rule has a name")
	}
}
