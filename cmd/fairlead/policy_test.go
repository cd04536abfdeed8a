package main

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/reasons"
)

// samplePolicies answers as an agent with one policy does.
type samplePolicies struct{}

// Names returns the name of a rule.
func (samplePolicies) Names() []policies.RuleName {
	return []policies.RuleName{{Number: 7, Policy: "networkpolicy shop/web", Direction: "ingress", Words: "networkpolicy shop/web, ingress: no rule accepts it"}}
}

// List returns two policies, one of which has a problem.
func (samplePolicies) List() policies.Listing {
	return policies.Listing{
		Policies: []policies.PolicySummary{
			{Policy: "clusternetworkpolicy admin/tenants", Directions: []string{"ingress", "egress"}, Rules: 3, Pods: 2},
			{Policy: "networkpolicy shop/web", Directions: []string{"ingress"}, Pods: 1, Problems: []model.Problem{{Reason: "InvalidPolicy", Message: "x"}}},
		},
		Others: 4, Notes: []string{"Policies are only audited on this node."},
	}
}

// Get returns a pod and a policy for any name but "shop/none".
func (samplePolicies) Get(name string) (policies.Found, error) {
	if name == "shop/none" {
		return policies.Found{}, errors.New("no pod of this node and no policy is called that")
	}
	rule := policies.RuleView{
		Policy: "networkpolicy shop/web", Direction: "ingress", Rule: 1, Label: "a\x1b", Action: "Accept",
		Peers: []string{"pods app=friend in namespace shop", "10.0.0.0/8"}, Ports: []string{"tcp 7"},
	}
	summary := policies.PolicySummary{Policy: "networkpolicy shop/web", Directions: []string{"ingress"}, Rules: 1, Pods: 1}
	pod := model.Name{Namespace: "shop", Name: "web"}
	return policies.Found{
		Pods: []policies.PodView{{
			Pod: pod, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.5")}, Policies: []string{"networkpolicy shop/web"},
			Ingress: policies.DirectionView{Rules: []policies.RuleView{rule}, Else: "denied: networkpolicy shop/web isolates the pod"},
			Egress:  policies.DirectionView{Else: "accepted: no policy denies it"},
		}},
		Policies: []policies.PolicyView{{PolicySummary: summary, Selects: "all pods in namespace shop", Names: []model.Name{pod}, RuleList: []policies.RuleView{rule}}},
	}, nil
}

// Explain denies everything.
func (samplePolicies) Explain(q policies.Question) ([]policies.Answer, error) {
	pod := model.Name{Namespace: "shop", Name: "web"}
	return []policies.Answer{{
		From: policies.End{Address: netip.MustParseAddr("10.2.0.1"), Where: "a pod of namespace shop on another node"},
		To:   policies.End{Address: netip.MustParseAddr("10.1.0.5"), Pod: pod, Where: "pod shop/web of this node"}, Ports: q.Ports.String(), Outcome: policies.Denied,
		Judgments: []policies.Judgment{{Pod: pod, Direction: "ingress", Spans: []policies.SpanView{{Ports: "8080/tcp", Policy: "networkpolicy shop/web", By: "networkpolicy shop/web, ingress: no rule accepts it"}}}},
		Notes:     []string{"10.2.0.1 is no pod of this node."},
	}}, nil
}

// Audit cuts a flow for each policy, and fails for text that is none.
func (samplePolicies) Audit(name string, text []byte) (policies.Audit, error) {
	if string(text) != "policies" {
		return policies.Audit{}, errors.New(name + ":1: not a policy")
	}
	cut := policies.Cut{
		Source: netip.MustParseAddrPort("10.2.0.1:4000"), Destination: netip.MustParseAddrPort("10.1.0.5:8080"), Protocol: "tcp", Pod: model.Name{Namespace: "shop", Name: "web"},
		By: "networkpolicy shop/web, ingress: no rule accepts it", Unsure: true,
	}
	return policies.Audit{Policies: []string{"networkpolicy shop/web (added)"}, Flows: 40, Total: 3, Cut: []policies.Cut{cut}, Notes: []string{"A note."}}, nil
}

func TestPolicyAudit(t *testing.T) {
	state, _ := startAgent(t, healthyStatus)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "p.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	got := fairlead(t, "policy", "audit", "--state-dir", state, "-f", file("policies"))
	if got.code != exitOK {
		t.Errorf("exit %d, %s", got.code, got.stderr)
	}
	golden(t, "policy-audit.txt", got.stdout)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "name their file with -f"},
		{[]string{"-f", file("nonsense")}, exitError, "p.yaml:1: not a policy"},
		{[]string{"-f", file(strings.Repeat(" ", api.MaxAudit+1))}, exitError, "longer than"},
		{[]string{"-f", "/nowhere"}, exitError, "no such file"},
	} {
		got := fairlead(t, append([]string{"policy", "audit", "--state-dir", state}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.says) {
			t.Errorf("%q: exit %d, %s", tt.says, got.code, got.stderr)
		}
	}
}

// TestPolicyCommands compares what the commands print with golden files.
func TestPolicyCommands(t *testing.T) {
	state, _ := startAgent(t, healthyStatus)
	for name, args := range map[string][]string{
		"policy-list": {"list"}, "policy-get": {"get", "shop/web"}, "policy-explain": {"explain", "10.2.0.1", "shop/web", "8080"},
	} {
		got := fairlead(t, append([]string{"policy", "--state-dir", state}, args...)...)
		if got.code != exitOK || got.stderr != "" {
			t.Errorf("%s: exit %d, %s", name, got.code, got.stderr)
		}
		golden(t, name+".txt", got.stdout)
		got = fairlead(t, append([]string{"policy", "--state-dir", state, "-o", "json"}, args...)...)
		if got.code != exitOK || !json.Valid([]byte(got.stdout)) {
			t.Errorf("%s: exit %d, %s", name, got.code, got.stdout)
		}
	}
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"get", "shop/none"}, exitError, "no policy is called that"},
		{[]string{"explain", "10.2.0.1", "shop/web", "80/quic"}, exitUsage, "write PORT, PORT/tcp"},
		{[]string{"explain", "10.2.0.1", "shop/web", "65536"}, exitUsage, "write PORT, PORT/tcp"},
		{[]string{"explain", "10.2.0.1"}, exitUsage, "accepts between 2 and 3"},
	} {
		got := fairlead(t, append([]string{"policy", "--state-dir", state}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.says) {
			t.Errorf("%v: exit %d, %s", tt.args, got.code, got.stderr)
		}
	}
	if got := fairlead(t, append(nowhere(t), "policy", "list")...); got.code != exitUnreachable {
		t.Errorf("without an agent: exit %d, %s", got.code, got.stderr)
	}
}

func TestNamesOfDenials(t *testing.T) {
	list := []reasons.Denial{{Rule: 7, Packets: 1}, {Rule: 8, Packets: 2}}
	nameDenials(list, samplePolicies{}.Names())
	views := dropViews([]reasons.Drop{{Hook: "pod", Reason: "policy"}, {Hook: "pod", Reason: "ttl"}}, list)
	want := []dropView{
		{Drop: reasons.Drop{Hook: "pod", Reason: "policy"}, Denials: []reasons.Denial{
			{Rule: 7, Packets: 1, Policy: "networkpolicy shop/web, ingress: no rule accepts it"}, {Rule: 8, Packets: 2},
		}},
		{Drop: reasons.Drop{Hook: "pod", Reason: "ttl"}},
	}
	if diff := cmp.Diff(want, views); diff != "" {
		t.Error(diff)
	}
}
