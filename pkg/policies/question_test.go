package policies

import (
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// loaded returns a Controller that enforces policies about n/web, with a client in the namespace and a node.
func loaded(t *testing.T, list ...*model.NetworkPolicy) *rig {
	r := newRig(t)
	r.around.NeedPods = nil
	r.sync()
	r.store.ReplaceNodes([]*model.Node{{Name: "self", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}})
	r.listPolicies(list...)
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	return r
}

// words returns an answer in one line.
func words(a *Answer) string {
	parts := []string{a.Outcome}
	for _, j := range a.Judgments {
		for _, s := range j.Spans {
			parts = append(parts, j.Direction+" of "+j.Pod.String(), s.Ports, s.By)
		}
	}
	return strings.Join(parts, "; ")
}

func TestExplain(t *testing.T) {
	policy := isolate("client")
	policy.Rules[model.Ingress][0].AnyPort = false
	policy.Rules[model.Ingress][0].Ports = []model.PortSpan{{Protocol: model.TCP, First: 80, Last: 81}}
	r := loaded(t, policy)
	const denied = "networkpolicy n/p, ingress: no rule accepts it"
	for _, tt := range []struct {
		from, to, ports string
		want            string
		notes           string
	}{
		{"n/peer", "n/web", "80", "accepted; ingress of n/web; 80/tcp; networkpolicy n/p, ingress rule 1", "10.0.1.1 is no pod of this node"},
		{"n/peer", "n/web", "82/tcp", "denied; ingress of n/web; 82/tcp; " + denied, ""},
		{"10.0.1.1", "10.0.0.1", "80/udp", "denied; ingress of n/web; 80/udp; " + denied, ""},
		{"10.0.1.1", "::ffff:10.0.0.1", "icmp", "denied; ingress of n/web; icmp; " + denied, ""},
		{"198.51.100.7", "n/web", "", "denied; ingress of n/web; anything; " + denied, ""},
		{"n/peer", "n/web", "", "depends on the port; ingress of n/web; tcp 0-79; " + denied + "; ingress of n/web; tcp 80-81; networkpolicy n/p, ingress rule 1; " +
			"ingress of n/web; tcp 82-65535; " + denied + "; ingress of n/web; all udp; " + denied + "; ingress of n/web; all sctp; " + denied +
			"; ingress of n/web; what has no ports, such as ICMP; " + denied, ""},
		{"n/web", "n/peer", "80", "accepted; egress of n/web; 80/tcp; no policy denies it", "what policies say about what it receives, its own node decides"},
		{"node", "n/web", "80", "accepted; ingress of n/web; anything; the node of a pod may talk to it", "judged by who sent it"},
		{"n/web", "n/web", "80", "accepted", "itself"},
		{"198.51.100.7", "n/peer", "80", "accepted", "198.51.100.7 is no pod of this node"},
	} {
		ports, err := ParsePorts(tt.ports)
		if err != nil {
			t.Fatal(err)
		}
		answers, err := r.Explain(Question{tt.from, tt.to, ports})
		if err != nil || len(answers) != 1 {
			t.Errorf("%s to %s: %v, %d answers", tt.from, tt.to, err, len(answers))
			continue
		}
		if have := words(&answers[0]); have != tt.want {
			t.Errorf("%s to %s\nhave %s\nwant %s", tt.from, tt.to, have, tt.want)
		}
		if notes := strings.Join(answers[0].Notes, " "); !strings.Contains(notes, tt.notes) {
			t.Errorf("%s to %s: notes are %q, want %q", tt.from, tt.to, notes, tt.notes)
		}
	}
	for _, q := range []Question{{From: "n/nobody", To: "n/web"}, {From: "x", To: "n/web"}, {From: "fd00::1", To: "n/web"}, {From: "", To: "10.0.0.1"}} {
		if answers, err := r.Explain(q); err == nil {
			t.Errorf("%+v: %+v", q, answers)
		}
	}
	r.Mode = "audit"
	if answers, err := r.Explain(Question{From: "n/peer", To: "n/web"}); err != nil || !strings.Contains(strings.Join(answers[0].Notes, " "), "only audited") {
		t.Errorf("%v, %+v", err, answers)
	}
}

func TestParsePorts(t *testing.T) {
	for _, text := range []string{"80/http", "-1", "80/", "/tcp", "65536", "icmp/8", "tcp", " 80"} {
		if p, err := ParsePorts(text); err == nil {
			t.Errorf("%q: %+v", text, p)
		}
	}
	for _, text := range []string{"", "icmp", "80/tcp", "0/udp", "65535/sctp"} {
		if p, err := ParsePorts(text); err != nil || p.String() != text {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
}

func TestViews(t *testing.T) {
	baseline := &model.NetworkPolicy{Name: model.Name{Name: "base"}, Tier: model.TierBaseline}
	for direction := range baseline.Rules {
		baseline.Rules[direction] = []model.PolicyRule{{Label: "all", Action: model.Deny, AnyPeer: true, AnyPort: true}}
	}
	other := isolate("x")
	other.Name.Name, other.Subject.Pods = "other", model.Selector{{Label: "app", Operator: model.In, Values: []string{"nobody"}}}
	bad := isolate("client")
	bad.Problems = []model.Problem{{Reason: "InvalidPolicy", Message: "m"}}
	r := newRig(t)
	r.around.NeedPods = nil
	r.sync()
	r.store.ReplaceNetworkPolicies([]*model.NetworkPolicy{bad, other})
	r.store.ReplaceClusterNetworkPolicies([]*model.NetworkPolicy{baseline})
	r.step()
	list := r.List()
	if len(list.Policies) != 2 || list.Others != 1 || list.Policies[0].Policy != "networkpolicy n/p" || list.Policies[0].Pods != 1 || len(list.Policies[0].Problems) != 1 ||
		strings.Join(list.Policies[1].Directions, " ") != "ingress egress" || list.Policies[1].Policy != "clusternetworkpolicy baseline/base" {
		t.Errorf("%+v", list)
	}
	found, err := r.Get("n/web")
	if err != nil || len(found.Pods) != 1 || len(found.Policies) != 0 {
		t.Fatalf("%v, %+v", err, found)
	}
	pod := found.Pods[0]
	if len(pod.Ingress.Rules) != 1 || pod.Ingress.Rules[0].Peers[0] != "pods app=client in namespace n" || pod.Ingress.Else != "denied: networkpolicy n/p isolates the pod" {
		t.Errorf("ingress: %+v", pod.Ingress) // the tier Baseline does not decide where a NetworkPolicy isolates
	}
	if len(pod.Egress.Rules) != 1 || pod.Egress.Rules[0].Label != "all" || pod.Egress.Rules[0].Peers[0] != "anybody" || pod.Egress.Else != "accepted: no policy denies it" {
		t.Errorf("egress: %+v", pod.Egress)
	}
	for _, name := range []string{"n/p", "networkpolicy n/p", "base", "baseline/base", "n/other"} {
		if found, err := r.Get(name); err != nil || len(found.Policies) != 1 {
			t.Errorf("%s: %v, %+v", name, err, found)
		}
	}
	for _, name := range []string{"p", "admin/base", "n/base", ""} {
		if found, err := r.Get(name); err == nil {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
