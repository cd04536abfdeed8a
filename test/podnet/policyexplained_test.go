package podnet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/explain"
	verdicts "fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/test/rig"
)

// echoService is a Service of both families at port 70 of 10.96.0.10 and fd96::10, with one pod behind it.
func echoService(p *pod) string {
	text := "---\napiVersion: v1\nkind: Service\nmetadata: {name: echo, namespace: shop}\n" +
		"spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd96::10'], ipFamilies: [IPv4, IPv6], ports: [{name: tcp, port: 70, targetPort: 7}, {name: sctp, port: 70, protocol: SCTP}]}\n"
	for is4, addr := range p.addr {
		text += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: echo-%t, namespace: shop, labels: {kubernetes.io/service-name: echo}}\n"+
			"addressType: %s\nports: [{name: tcp, port: 7}, {name: sctp, port: 7, protocol: SCTP}]\nendpoints: [{addresses: ['%s'], nodeName: node-a}]\n",
			is4, map[bool]string{true: "IPv4", false: "IPv6"}[is4], addr)
	}
	return text
}

// TestExplainPolicies asks what becomes of connections that policies accept and deny, and compares it with what becomes
// of them.
func TestExplainPolicies(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, friend, stranger := h.pod("server"), h.pod("friend"), h.pod("stranger")
	for _, p := range []*pod{server, friend, stranger} {
		h.mustAdd(p)
	}
	listenIn(t, server.Netns)
	objects := []string{shopNamespace, podManifest(server), podManifest(friend), podManifest(stranger), onlyFriends, echoService(server)}
	h.serveFiles(objects...)
	// The question is what waits for the policy: a connection that passed just before would send its end again and again,
	// and each denied one would look like a trace of the questions below.
	for _, addr := range server.addr {
		h.until("the policy is enforced", func() bool { return h.explain(stranger, netip.AddrPortFrom(addr, 7)).Outcome == explain.Dropped })
	}
	h.until("the Service is there", func() bool { return h.explain(friend, netip.MustParseAddrPort("[fd96::10]:70")).Service != "" })

	for is4, addr := range server.addr {
		vip := netip.MustParseAddrPort(map[bool]string{true: "10.96.0.10:70", false: "[fd96::10]:70"}[is4])
		for _, from := range []*pod{friend, stranger} {
			for _, to := range []netip.AddrPort{netip.AddrPortFrom(addr, 7), vip} {
				h.explains(from, to)
			}
		}
		h.explainsProtocols(friend, stranger, netip.AddrPortFrom(addr, 7), vip)
	}
	h.explainsWithoutAgent(friend, stranger, server)
}

// explains compares an explanation with a connection whose socket the programs point at a backend, and with one whose
// packets they translate.
func (h *oneNodeWithAgent) explains(from *pod, to netip.AddrPort) {
	h.t.Helper()
	before := h.marks()
	e := h.explain(from, to)
	if diff := cmp.Diff(before, h.marks()); diff != "" || before.Flows != 0 {
		h.t.Errorf("the question left a trace: %+v\n%s", before, diff)
	}
	for _, cgroup := range []*rig.Cgroup{nil, h.cgroup} {
		out, err := rig.RunChild(cgroup, from.Netns, "knock", fmt.Sprintf("%s/tcp/%s", silence, to))
		h.must(err)
		answered := strings.Trim(out, "[]\"\n") == from.addr[to.Addr().Is4()].String()
		if denied := e.Outcome == explain.Dropped; denied == answered {
			h.t.Errorf("%s to %s, in the cgroup %t: answered %t, explained as %s, %s", from.id, to, cgroup != nil, answered, e.Outcome, e.Verdict)
		}
	}
	accepted := from.id == "friend"
	want := map[bool]string{true: verdicts.Accepted, false: "denied: " + explainedBy}[accepted]
	if e.Verdict != want || len(e.Policies) != 1 || e.Policies[0].Program == nil || (e.Policies[0].Program.Outcome == explain.TrialDrop) == accepted {
		h.t.Errorf("%s to %s: %q, %+v", from.id, to, e.Verdict, e.Policies)
	}
}

// explainsProtocols asks about protocols that the policy does not accept, and about a Service whose packets the program
// at the pod's device balances.
func (h *oneNodeWithAgent) explainsProtocols(friend, stranger *pod, direct, vip netip.AddrPort) {
	h.t.Helper()
	for _, tt := range []struct {
		from     *pod
		to       netip.AddrPort
		protocol string
	}{{friend, direct, "udp"}, {stranger, direct, "udp"}, {friend, direct, "sctp"}, {friend, vip, "sctp"}} {
		before := h.marks()
		e := h.explain(tt.from, tt.to, "--protocol", tt.protocol)
		if diff := cmp.Diff(before, h.marks()); diff != "" {
			h.t.Errorf("the question left a trace: %s", diff)
		}
		if e.Verdict != "denied: "+explainedBy || e.Outcome != explain.Dropped || len(e.Policies) == 0 || e.Policies[0].Program == nil || e.Policies[0].Program.Reason != "policy" {
			h.t.Errorf("%s from %s to %s: %s, %q, %+v", tt.protocol, tt.from.id, tt.to, e.Outcome, e.Verdict, e.Policies)
			continue
		}
		if byDevice := tt.to == vip; byDevice != (e.Forwarding == explain.ByPodDevice) || byDevice && e.Policies[0].Program.Backend != direct {
			h.t.Errorf("%s to %s: by %q, %+v", tt.protocol, tt.to, e.Forwarding, e.Policies[0].Program)
		}
	}
}

// explainsWithoutAgent asks the maps.
func (h *oneNodeWithAgent) explainsWithoutAgent(friend, stranger, server *pod) {
	h.t.Helper()
	h.kill()
	for is4, addr := range server.addr {
		to := netip.AddrPortFrom(addr, 7)
		if e := h.explain(friend, to); e.Verdict != verdicts.Accepted || !strings.HasPrefix(e.Policies[0].Judgments[0].Spans[0].By, "rule ") {
			h.t.Errorf("without the agent, IPv4 %t: %q, %+v", is4, e.Verdict, e.Policies)
		}
		e := h.explain(stranger, to)
		if !strings.HasPrefix(e.Verdict, "denied: rule ") || e.Outcome != explain.Dropped || len(e.Policies) != 1 || e.Policies[0].Program != nil {
			h.t.Errorf("without the agent, IPv4 %t: %s, %q, %+v", is4, e.Outcome, e.Verdict, e.Policies)
		}
	}
	h.start()
	h.ready()
}
