package policies

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// flow is one to n/web, or from it.
func flow(direction model.Direction, peer netip.Addr, port uint16, judged bool) *policy.Flow {
	return &policy.Flow{Subject: web, Direction: direction, Peer: peer, Protocol: model.TCP, Port: port, Source: netip.AddrPortFrom(peer, 4000), Destination: netip.AddrPortFrom(web, port), Judged: judged}
}

func TestAuditOfFlows(t *testing.T) {
	now := isolate("client") // accepts the client at every port
	next := isolate("client")
	next.Rules[model.Ingress][0].AnyPort, next.Rules[model.Ingress][0].Ports = false, []model.PortSpan{{Protocol: model.TCP, First: 80, Last: 80}}
	next.Problems = []model.Problem{{Reason: "InvalidPolicy", Message: "m"}}
	r := loaded(t, now)
	before := r.tables
	byNode := flow(model.Ingress, client, 81, true)
	byNode.ByNode = true
	elsewhere := flow(model.Ingress, client, 81, true)
	elsewhere.Subject = netip.MustParseAddr("10.9.0.1")
	a, err := r.Audit([]*model.NetworkPolicy{next}, func(visit func(*policy.Flow)) error {
		for _, f := range []*policy.Flow{
			flow(model.Ingress, client, 80, true), flow(model.Ingress, client, 81, true), flow(model.Egress, client, 81, true), byNode, elsewhere,
			flow(model.Ingress, client, 81, false),                          // the pod has a policy, so this is judged too
			flow(model.Ingress, netip.MustParseAddr("192.0.2.9"), 81, true), // is denied now
		} {
			visit(f)
		}
		return nil
	})
	if err != nil || a.Flows != 5 || a.Total != 1 || len(a.Cut) != 1 || a.Policies[0] != "networkpolicy n/p (replaced)" {
		t.Fatalf("%v, %+v", err, a)
	}
	if c := a.Cut[0]; c.By != "networkpolicy n/p, ingress: no rule accepts it" || c.Destination.Port() != 81 || c.Pod != (model.Name{Namespace: "n", Name: "web"}) || c.Unsure {
		t.Errorf("%+v", c)
	}
	if notes := strings.Join(a.Notes, " "); notes != "networkpolicy n/p: InvalidPolicy: m" {
		t.Errorf("notes are %q", notes)
	}
	// Nothing that is in force has changed.
	r.step()
	if r.tables != before || len(r.Names()) == 0 {
		t.Error("the tables are others")
	}
	if verdict := r.tables.Evaluate(policy.Packet{Src: client, Dst: web, Protocol: model.TCP, Port: 81}); !verdict.Accepted {
		t.Errorf("denied by %s", verdict.Rule)
	}
	if _, err := r.Audit(nil, func(func(*policy.Flow)) error { return errors.New("no maps") }); err == nil {
		t.Error("an error of the maps is not returned")
	}
}

// A pod without policies has only flows that are translated, and while no policy needs the pods of other nodes it is
// not known what they are.
func TestAuditOfUnknownPods(t *testing.T) {
	r := newRig(t)
	r.sync()
	r.listPolicies()
	r.step()
	a, err := r.Audit([]*model.NetworkPolicy{isolate("client")}, func(visit func(*policy.Flow)) error {
		for range maxCut + 5 {
			visit(flow(model.Ingress, client, 81, false))
		}
		visit(flow(model.Egress, client, 81, false))
		return nil
	})
	if err != nil || a.Flows != maxCut+6 || a.Total != maxCut+5 || len(a.Cut) != maxCut || !a.Cut[0].Unsure || a.Policies[0] != "networkpolicy n/p (added)" || len(a.Notes) != 1 {
		t.Fatalf("%v, %d flows, %d cut, %d listed, %v, %v", err, a.Flows, a.Total, len(a.Cut), a.Policies, a.Notes)
	}
	if r.needed {
		t.Error("the audit asks for the pods of all nodes")
	}
}
