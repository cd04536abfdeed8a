package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policies"
)

func TestPolicies(t *testing.T) {
	path, h := socket(t), handlers()
	h.Policies = samplePolicies{}
	stop := serve(t, path, h)
	defer stop()
	names, err := NewClient(path).PolicyRules(t.Context())
	if diff := cmp.Diff(samplePolicies{}.Names(), names); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	list, err := NewClient(path).Policies(t.Context())
	if err != nil || list.Others != 3 {
		t.Errorf("%v, %+v", err, list)
	}
	if found, err := NewClient(path).Policy(t.Context(), "shop/a&b"); err != nil || len(found.Policies) != 1 || found.Policies[0].Policy != "shop/a&b" {
		t.Errorf("%v, %+v", err, found)
	}
	q := policies.Question{From: "10.0.0.1", To: "shop/a", Ports: policies.Ports{One: true, Protocol: model.UDP, Port: 53}}
	answers, err := NewClient(path).ExplainPolicies(t.Context(), q)
	if err != nil || len(answers) != 1 || answers[0].Outcome != "10.0.0.1 shop/a 53/udp" {
		t.Errorf("%v, %+v", err, answers)
	}
	if audit, err := NewClient(path).AuditPolicies(t.Context(), "a&b", make([]byte, MaxAudit)); err != nil || audit.Flows != MaxAudit || audit.Policies[0] != "a&b" {
		t.Errorf("%v, %+v", err, audit)
	}
	if audit, err := NewClient(path).AuditPolicies(t.Context(), "a", make([]byte, MaxAudit+1)); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a file that is too long: %v, %+v", err, audit)
	}
	if err := NewClient(path).do(t.Context(), "GET", "/v1/policies/explain?ports=x", nil, &answers); err == nil || !strings.Contains(err.Error(), "write PORT") {
		t.Errorf("a port that is none: %v", err)
	}
}

func TestNoPolicies(t *testing.T) {
	path := socket(t)
	stop := serve(t, path, handlers())
	defer stop()
	if _, err := NewClient(path).PolicyRules(t.Context()); err == nil || !strings.Contains(err.Error(), noPolicies) {
		t.Errorf("without policies: %v", err)
	}
}
