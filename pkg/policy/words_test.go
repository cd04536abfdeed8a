package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// TestWords checks how verdicts are told.
func TestWords(t *testing.T) {
	c := isolated()
	c.SetPod(pod("n", "web", "web", client.String()))
	c.Update()
	have := fmt.Sprintf("%s\n%s", c.accepts(t, client, true).Rule, c.accepts(t, netip.MustParseAddr("192.0.2.1"), false).Rule)
	want := "networkpolicy n/p, ingress rule 1\nnetworkpolicy n/p, ingress: no rule accepts it"
	if have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	rule := func(tier model.Tier, label string) Rule {
		return Rule{Why: ByRule, Policy: model.Name{Name: "x"}, Tier: tier, Direction: model.Egress, Number: 2, Label: label, Action: model.Deny}
	}
	for _, tt := range []struct {
		rule     Rule
		want     string
		object   string
		position int
	}{
		{rule(model.TierAdmin, "no \x1b[2J"), `clusternetworkpolicy admin/x, egress rule 3 "no \x1b[2J"`, "clusternetworkpolicy admin/x", 3},
		{rule(model.TierBaseline, ""), "clusternetworkpolicy baseline/x, egress rule 3", "clusternetworkpolicy baseline/x", 3},
		{Rule{Why: OverQuota, Policy: model.Name{Namespace: "n"}}, "the policies of namespace n exceed its quota, so they deny everything", "", 0},
		{Rule{}, "no policy denies it", "", 0},
	} {
		if tt.rule.String() != tt.want || tt.rule.Object() != tt.object || tt.rule.Position() != tt.position {
			t.Errorf("have %s, %q, %d\nwant %s, %q, %d", tt.rule, tt.rule.Object(), tt.rule.Position(), tt.want, tt.object, tt.position)
		}
	}
}
