package source

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestClusterPolicyCondition(t *testing.T) {
	const (
		all   = `tier: Admin, subject: {namespaces: {}}`
		right = `{action: Deny, from: [{namespaces: {}}]}`
		wrong = `{action: Deny, from: [{networks: [10.0.0.0/8]}]}`
	)
	tests := []struct{ name, spec, want string }{
		{"right", `{` + all + `, ingress: [` + right + `], egress: [{action: Accept, to: [{nodes: {}}]}]}`, "True Accepted Followed as written: 2 of 2 rules."},
		{"no rules", `{` + all + `}`, "True Accepted It has no rules, so it does nothing."},
		{"wrong in part", `{` + all + `, ingress: [` + wrong + `, ` + right + `]}`,
			"False PartiallyInvalid Not followed as written: 1 of 2 rules, which accept no more than what is right in them: " +
				"spec.ingress[0] peer 0 is not understood: give it exactly one of namespaces and pods, or for egress of nodes and networks; " +
				"spec.ingress[0] denies all, since not all of it is understood: correct it."},
		{"wrong in a peer", `{` + all + `, egress: [{action: Accept, to: [{networks: [x, 10.0.0.0/8]}]}, {action: Pass, to: [{namespaces: {}}]}]}`,
			"False PartiallyInvalid Not followed as written: 1 of 2 rules, which accept no more than what is right in them: " +
				`spec.egress[0] peer 0 has the network "x": write it like 192.0.2.0/24 or 2001:db8::/64.`},
		{"every rule wrong", `{` + all + `, egress: [{action: Accept, to: [{domainNames: [example.com]}]}]}`,
			"False Invalid Not followed as written: 1 of 1 rules, which accept no more than what is right in them: " +
				"spec.egress[0] peer 0 matches nothing, since domainNames are not supported: use networks."},
		{"wrong as a whole", `{tier: Top, subject: {namespaces: {}}, ingress: [` + right + `, ` + right + `]}`,
			"False Invalid Not followed as written: 2 of 2 rules, which accept no more than what is right in them: " +
				`tier "Top" is not known, so the policy is treated as one of the tier Admin that only denies: use Admin or Baseline.`},
		{"wrong without rules", `{tier: Admin, subject: {}}`,
			"False Invalid It has no rules, so it does nothing: spec.subject is not one of namespaces and pods, so rules that deny are applied to all pods: correct it."},
	}
	for _, tt := range tests {
		policy := &ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Generation: 7}}
		if err := yaml.Unmarshal([]byte(tt.spec), &policy.Spec); err != nil {
			t.Fatal(tt.name, err)
		}
		c := ClusterPolicyCondition(policy)
		if have := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); have != tt.want {
			t.Errorf("%s:\nhave %s\nwant %s", tt.name, have, tt.want)
		}
		if c.Type != ClusterPolicyAccepted || c.ObservedGeneration != 7 || !c.LastTransitionTime.IsZero() {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
}

// TestConditionIsBounded checks that a policy which is wrong everywhere, at length, says so in a text that its status can hold.
func TestConditionIsBounded(t *testing.T) {
	policy := &ClusterPolicy{Spec: ClusterPolicySpec{Tier: strings.Repeat("\U000e0001", 1000)}}
	for range 100 {
		policy.Spec.Egress = append(policy.Spec.Egress, ClusterRule{Action: strings.Repeat("\U000e0001", 1000)})
	}
	c := ClusterPolicyCondition(policy)
	checkCondition(t, c)
	if !regexp.MustCompile(`; \d+ more problems\.$`).MatchString(c.Message) {
		t.Errorf("what is left out is not said: ...%s", c.Message[len(c.Message)-100:])
	}
}

// checkCondition checks what the API demands of a condition, and that nothing hostile gets into it.
func checkCondition(t *testing.T, c metav1.Condition) {
	t.Helper()
	if len(c.Message) > maxConditionText || !utf8.ValidString(c.Message) || strings.ContainsFunc(c.Message, func(r rune) bool { return r < ' ' }) {
		t.Errorf("a message of %d bytes: %q", len(c.Message), c.Message)
	}
	if reason := regexp.MustCompile(`^[A-Za-z]+$`); !reason.MatchString(c.Reason) || c.Status != metav1.ConditionTrue && c.Status != metav1.ConditionFalse {
		t.Errorf("%+v", c)
	}
}

func TestClusterPolicyHas(t *testing.T) {
	const ours = `{"type":"fairlead.io/Accepted","status":"True","reason":"Accepted","message":"m","observedGeneration":3,"lastTransitionTime":"2026-11-28T08:00:00Z"}`
	for status, has := range map[string]bool{
		``: false, `{}`: false, `7`: false, `{"conditions":7}`: false, `{"conditions":[]}`: false, `{"conditions":null}`: false,
		`{"conditions":[{"type":"Accepted"}]}`: false,
		`{"conditions":[` + ours + `]}`:        true,
		`{"conditions":[7,{"type":8},{"type":"Ready","lastTransitionTime":"x"},` + ours + `],"more":[1]}`:   true,
		`{"conditions":[{"type":"fairlead.io/Accepted","status":"True","lastTransitionTime":"yesterday"}]}`: false,
	} {
		have := ClusterPolicyHas(&ClusterPolicy{Status: json.RawMessage(status)})
		if (have != nil) != has || has && (have.ObservedGeneration != 3 || have.LastTransitionTime.Unix() != 1795852800) {
			t.Errorf("%s: %+v", status, have)
		}
	}
}

// TestStatusChangesNothing checks that agents make the same of a policy whatever its status says, so that conditions cost them
// nothing.
func TestStatusChangesNothing(t *testing.T) {
	for _, status := range []string{``, `"status":7,`, `"status":{"conditions":[{"type":"x","lastTransitionTime":"y"}]},`} {
		policy := &ClusterPolicy{}
		if err := json.Unmarshal([]byte(`{`+status+`"metadata":{"name":"c"},"spec":{"tier":"Admin","subject":{"namespaces":{}}}}`), policy); err != nil {
			t.Fatal(err)
		}
		if have := brief(ClusterNetworkPolicy(policy)); have != "subject { [] []}" {
			t.Errorf("with %s: %s", status, have)
		}
	}
}
