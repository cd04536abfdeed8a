package podnet

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/maps"
	verdicts "fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/reasons"
)

const (
	explainedBy = "networkpolicy shop/friends, ingress: no rule accepts it"
	// asking is the port from which an explanation asks. No connection uses it.
	asking = 11
)

// explained is what the command says in JSON.
type explained struct {
	explain.Explanation
	Policies []struct {
		verdicts.Answer
		Program *explain.Trial
	}
}

func (h *oneNodeWithAgent) explain(from *pod, to netip.AddrPort, args ...string) (e explained) {
	h.t.Helper()
	source := netip.AddrPortFrom(from.addr[to.Addr().Is4()], asking)
	text := h.run(append([]string{"explain", source.String(), to.String(), "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		h.t.Fatalf("%v in %s", err, text)
	}
	return e
}

// marks is what judged packets leave behind.
type marks struct {
	Flows    int // from the port of explanations
	Counters []reasons.Counter
	Denials  []reasons.Denial
}

func (h *oneNodeWithAgent) marks() (have marks) {
	h.t.Helper()
	dir := datapath.MapsDir(h.bpffs)
	m, err := maps.Open(dir, true)
	h.must(err)
	defer m.Close()
	count := func(flows []maps.Flow) {
		for _, f := range flows {
			if maps.PortOf(f.Sport) == asking || maps.PortOf(f.Dport) == asking {
				have.Flows++
			}
		}
	}
	h.must(m.EachPolicyFlow(func(flows []maps.Flow, _ []maps.PolicyFlow) error {
		count(flows)
		return nil
	}))
	have.Counters, err = reasons.ReadCounters(m.Counters)
	h.must(err)
	have.Denials, err = reasons.ReadDenials(dir)
	h.must(err)
	return have
}

// TestExplainAudit asks where policies are only audited.
func TestExplainAudit(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=audit")
	server, stranger := h.pod("server"), h.pod("stranger")
	h.mustAdd(server)
	h.mustAdd(stranger)
	listenIn(t, server.Netns)
	h.serveFiles(shopNamespace, podManifest(server), podManifest(stranger), onlyFriends)
	to := netip.AddrPortFrom(server.addr[true], 7)
	want := verdicts.Audited + ": " + explainedBy
	h.until("the policy is audited", func() bool { return h.explain(stranger, to).Verdict == want })
	before := h.marks()
	e := h.explain(stranger, to)
	if diff := cmp.Diff(before, h.marks()); diff != "" {
		t.Errorf("the question left a trace: %s", diff)
	}
	if e.Outcome != explain.LeftAlone || e.Policies[0].Program == nil || e.Policies[0].Program.Outcome != explain.TrialPassed || len(e.Policies[0].Program.Denials) != 1 {
		t.Errorf("%s, %+v", e.Outcome, e.Policies)
	}
	if !h.gets(stranger, server, true) {
		t.Error("what is only audited is denied")
	}
	h.kill()
	if e := h.explain(stranger, to); !strings.HasPrefix(e.Verdict, verdicts.Audited+": rule ") {
		t.Errorf("without the agent: %q, %+v", e.Verdict, e.Policies)
	}
	h.start()
	h.ready()
}
