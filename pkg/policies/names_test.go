package policies

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// TestNames checks that numbers of rules have names, for one more change also those of rules that are gone.
func TestNames(t *testing.T) {
	r := newRig(t)
	if have := r.Names(); len(have) != 0 {
		t.Errorf("before anything is compiled: %v", have)
	}
	r.sync()
	r.listPolicies(isolate("client"))
	r.step()
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	var isolated uint32
	for _, name := range r.Names() {
		if name.Number < policy.FirstRule {
			continue
		}
		want := RuleName{Number: name.Number, Policy: "networkpolicy n/p", Direction: "ingress", Rule: 1, Action: "Accept", Words: "networkpolicy n/p, ingress rule 1"}
		if name.Rule == 0 {
			isolated = name.Number
			want = RuleName{Number: name.Number, Policy: "networkpolicy n/p", Direction: "ingress", Action: "Deny", Words: "networkpolicy n/p, ingress: no rule accepts it"}
		}
		if diff := cmp.Diff(want, name); diff != "" {
			t.Error(diff)
		}
	}
	const words = "networkpolicy n/p, ingress: no rule accepts it"
	check := func(when, want string) {
		t.Helper()
		if have := r.Name(isolated); have != want {
			t.Errorf("%s: the rule is called %q, want %q", when, have, want)
		}
	}
	check("in force", words)
	r.listPolicies()
	r.step()
	check("just gone", words)
	for _, name := range r.Names() {
		if name.Number == isolated {
			t.Errorf("it is listed although it is gone: %+v", name)
		}
	}
	second := isolate()
	second.Name.Name, second.Isolates = "q", [2]bool{true, true} // which takes both numbers
	r.listPolicies(second)
	r.step()
	if have := r.Name(isolated); !strings.HasPrefix(have, "networkpolicy n/q, ") {
		t.Errorf("its number is another one's, but the rule is called %q", have)
	}
	if have := r.Name(1 << 20); have != "" {
		t.Errorf("a rule that never was: %q", have)
	}
}
