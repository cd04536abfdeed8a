package enforce

import (
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

// The denials of a rule are forgotten with the rule, since its number will be another one's; so are those that
// an agent before has left, which may have had other numbers.
func TestDenialsEndWithTheirRule(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, w := policy.New("self", policy.DefaultQuota(), 0), newWriter(t, m)
	pod := &model.PolicyPod{Name: model.Name{Namespace: "n", Name: "a0"}, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	c.SetNamespace("n", nil)
	c.SetLocal(pod)
	isolate := func(name string) {
		c.SetPolicy(&model.NetworkPolicy{Name: model.Name{Namespace: "n", Name: name}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "n"}, Isolates: [2]bool{true, true}})
	}
	apply := func() {
		t.Helper()
		if err := w.Apply(c.Update(), c.Tables(), devices(map[model.Name]*model.PolicyPod{pod.Name: pod})); err != nil {
			t.Fatal(err)
		}
	}
	deny := func() (list []bpf.MapsPolicyDenial) {
		t.Helper()
		for number, rule := range c.Tables().Rules {
			if number == policy.RuleUnknown || rule.Why == policy.Isolated {
				list = append(list, bpf.MapsPolicyDenial{Rule: number, Direction: uint32(rule.Direction)})
			}
		}
		for _, key := range list {
			if err := m.PolicyDenials.Put(key, uint64(3)); err != nil {
				t.Fatal(err)
			}
		}
		return list
	}
	counted := func(want int, keys []bpf.MapsPolicyDenial, when string) {
		t.Helper()
		have := 0
		for _, key := range keys {
			if _, found := lookup[bpf.MapsPolicyDenial, uint64](t, m.PolicyDenials, key); found {
				have++
			}
		}
		if have != want {
			t.Errorf("%s: %d of %d counts are there, want %d", when, have, len(keys), want)
		}
	}
	isolate("a")
	apply()
	keys := deny()
	counted(3, keys, "counted")
	isolate("b")
	c.DeletePolicy(model.Name{Namespace: "n", Name: "a"})
	apply()
	counted(1, keys, "without the policy") // that of the rule that no policy has
	keys = deny()
	w = newWriter(t, m)
	apply()
	counted(0, keys, "with the next agent")
}
