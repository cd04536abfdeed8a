package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/policies"
)

const deniedBySample = "networkpolicy shop/web, ingress: no rule accepts it"

// sampleTrial finds that a policy denies what a pod sends, and fails for port 9.
func sampleTrial(q explain.TrialQuestion) (explain.Trial, error) {
	switch {
	case !q.AtPod:
		return explain.Trial{Outcome: explain.TrialInside}, nil
	case q.Destination.Port() == 9:
		return explain.Trial{}, errors.New("no program")
	}
	return explain.Trial{
		Outcome: explain.TrialDrop, Reason: "policy", Device: "flabc", Hook: "pod",
		Denials: []explain.TrialDenial{{Direction: "ingress", Rule: 7, By: deniedBySample}},
	}, nil
}

// TestExplainPolicyCommand compares what is said about a connection that a policy denies with golden files.
func TestExplainPolicyCommand(t *testing.T) {
	bpffs := deadNode(t)
	state, _ := startAgent(t, healthyStatus)
	for name, args := range map[string][]string{
		"explain-policy.txt":      {"10.2.0.1", "10.1.0.5:8080"},
		"explain-policy.json":     {"10.2.0.1", "10.1.0.5:8080", "-o", "json"},
		"explain-policy-svc.txt":  {"10.2.0.1", "10.96.0.10:80"},
		"explain-policy-none.txt": {"10.2.0.1", "10.1.0.5:9"},
	} {
		got := fairlead(t, append(append([]string{"explain"}, args...), "--bpffs", bpffs, "--state-dir", state)...)
		if got.code != exitOK || got.stderr != "" {
			t.Errorf("%s: exit %d, %s", name, got.code, got.stderr)
		}
		golden(t, name, got.stdout)
	}
}

// TestVerdicts checks what verdicts about several backends come to.
func TestVerdicts(t *testing.T) {
	judged := func(accepted bool) []policies.Judgment {
		return []policies.Judgment{{Direction: "egress", Spans: []policies.SpanView{{Accepted: accepted, By: "rule 5"}}}}
	}
	passed := &explain.Trial{Outcome: explain.TrialPassed}
	audits := &explain.Trial{Outcome: explain.TrialPassed, Denials: []explain.TrialDenial{{By: "rule 6"}}}
	drops := &explain.Trial{Outcome: explain.TrialDrop, Reason: "policy", Denials: []explain.TrialDenial{{By: "rule 7"}}}
	spoofed := &explain.Trial{Outcome: explain.TrialDrop, Reason: "spoofed"}
	accepted := func(program *explain.Trial) policyVerdict {
		return policyVerdict{policies.Answer{Outcome: policies.Accepted, Judgments: judged(true)}, program}
	}
	denied := func(program *explain.Trial) policyVerdict {
		return policyVerdict{policies.Answer{Outcome: policies.Denied, Judgments: judged(false)}, program}
	}
	audited := policyVerdict{policies.Answer{Outcome: policies.Audited, Judgments: judged(false)}, audits}
	for _, tt := range []struct {
		about      string
		candidates int
		verdicts   []policyVerdict
		want       string
		outcome    explain.Outcome
		note       string
	}{
		{"accepted", 0, []policyVerdict{accepted(passed)}, "accepted", explain.LeftAlone, ""},
		{"denied", 0, []policyVerdict{denied(drops)}, "denied: rule 7", explain.Dropped, ""},
		{"denied without a program", 0, []policyVerdict{denied(nil)}, "denied: rule 5", explain.Dropped, ""},
		{"the program has not caught up", 0, []policyVerdict{denied(passed)}, "accepted", explain.LeftAlone, "may not be in force yet"},
		{"the program denies more", 0, []policyVerdict{accepted(drops)}, "denied: rule 7", explain.Dropped, "may not be in force yet"},
		{"audited", 0, []policyVerdict{audited}, policies.Audited + ": rule 6", explain.LeftAlone, ""},
		{"another reason", 0, []policyVerdict{accepted(spoofed)}, "accepted", explain.LeftAlone, "another reason: spoofed"},
		{"one of two", 2, []policyVerdict{accepted(passed), denied(drops)}, "1 of 2 backends are denied, see below", explain.LeftAlone, ""},
		{"one of two, policies are not about the other", 2, []policyVerdict{denied(drops)}, "1 of 2 backends are denied, see below", explain.LeftAlone, ""},
		{"both", 2, []policyVerdict{denied(drops), denied(drops)}, "denied: rule 7", explain.Dropped, ""},
		{"one of two is audited", 2, []policyVerdict{audited, accepted(passed)}, "accepted, but 1 of 2 backends would be", explain.LeftAlone, ""},
	} {
		e := &explanation{Explanation: &explain.Explanation{Outcome: explain.LeftAlone}, Policies: tt.verdicts}
		for range tt.candidates {
			e.Candidates = append(e.Candidates, explain.Candidate{Address: netip.MustParseAddrPort("10.1.0.5:80")})
		}
		notes := ""
		for i := range e.Policies {
			e.Policies[i].settle()
			notes += strings.Join(e.Policies[i].Notes, "")
		}
		e.addVerdict()
		if !strings.HasPrefix(e.Verdict, tt.want) || e.Outcome != tt.outcome || !strings.Contains(notes, tt.note) || (tt.note == "") != (notes == "") {
			t.Errorf("%s: %q, %s, %q", tt.about, e.Verdict, e.Outcome, notes)
		}
	}
}
