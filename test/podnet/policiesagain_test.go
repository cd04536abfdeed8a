package podnet

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// judgedBy returns by which generation each flow of pods with policies was judged that has been answered.
func (h *oneNodeWithAgent) judgedBy() map[bpf.MapsFlow]uint32 {
	h.t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(h.bpffs, "fairlead/v1/maps/policy_flows"), nil)
	h.must(err)
	defer m.Close()
	out := map[bpf.MapsFlow]uint32{}
	var key bpf.MapsFlow
	var row bpf.MapsPolicyFlow
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		out[key] = row.Generation
	}
	h.must(rows.Err())
	return out
}

// TestPoliciesAgain restarts agents while connections go on: these are not judged anew if nothing has changed, or
// only another pod is denied more than before, and are if it is theirs.
func TestPoliciesAgain(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, friend, other := h.pod("server"), h.pod("friend"), h.pod("other")
	pods := shopNamespace
	for _, p := range []*pod{server, friend, other} {
		h.mustAdd(p)
		pods += podManifest(p)
	}
	listenIn(t, server.Netns)
	friends := networkPolicy("friends", "server", "ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]")
	more := networkPolicy("more", "other", "policyTypes: [Egress]")
	h.serveFiles(pods, friends, more)
	h.until("the policies are enforced", func() bool { return strings.Contains(h.run("status"), "about 2 pods of this node") })
	asking := startTrickle(t, friend, server)
	goesOn := func() {
		t.Helper()
		before := asking.now()
		h.until("answers come", func() bool {
			now := asking.now()
			return now.OldAnswered > before.OldAnswered+10 && now.YoungAnswered > before.YoungAnswered+10
		})
	}
	anew := func(when string, restart func(), want bool) {
		t.Helper()
		goesOn()
		before := h.judgedBy()
		restart()
		h.ready()
		goesOn()
		after := h.judgedBy()
		judged, same := 0, 0
		for flow, generation := range before {
			if is, still := after[flow]; still && is != generation {
				judged++
			} else if still {
				same++
			}
		}
		t.Logf("%s: %d flows are judged anew, %d are not", when, judged, same)
		if (judged > 0) != want || judged+same == 0 {
			t.Errorf("%s: %d flows are judged anew, and %d are not", when, judged, same)
		}
	}
	again := func() {
		h.kill()
		h.start()
	}
	anew("a restart", again, false)
	anew("another restart", h.restart, false)
	anew("another pod may less", func() {
		h.kill()
		h.serveFiles(pods, friends, more, networkPolicy("nobody", "other", "policyTypes: [Ingress]"))
		h.start()
	}, false)
	anew("the pod may less", func() {
		h.kill()
		h.serveFiles(pods, more, friends, networkPolicy("silent", "server", "policyTypes: [Egress]"))
		h.start()
	}, true)
	asking.allAnswered()
}
