package podnet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/monitor"
)

// denial returns the first event of what a pod sends to another one in vain.
func (h *oneNodeWithAgent) denial(from, to *pod) (denied monitor.Event) {
	h.t.Helper()
	ctx, stop := context.WithCancel(h.t.Context())
	defer stop()
	filter := &monitor.Filter{Reasons: []string{"policy"}}
	knock := func() error {
		h.gets(from, to, true)
		return nil
	}
	err := api.NewClient(h.Dir+"/agent.sock").Monitor(ctx, filter, knock, func(e *monitor.Event) error {
		denied = *e
		stop()
		return nil
	})
	h.must(err)
	return denied
}

// audit checks what a policy would cut among the flows of two pods, the first of which has just asked the second, and that
// it is not enforced.
func (h *oneNodeWithAgent) audit(from, to *pod) {
	h.t.Helper()
	if !h.gets(from, to, true) {
		h.t.Error("what the policy accepts gets no answer")
	}
	path := filepath.Join(h.t.TempDir(), "denied.yaml")
	h.must(os.WriteFile(path, []byte(strings.ReplaceAll(onlyFriends, "port: 7", "port: 8")), 0o600))
	text := h.run("policy", "audit", "-f", path)
	for _, want := range []string{"networkpolicy shop/friends (replaced)", fmt.Sprintf("%s:7  tcp       shop/%s  networkpolicy shop/friends, ingress: no rule accepts it", to.addr[true], to.id)} {
		if !strings.Contains(text, want) {
			h.t.Errorf("the audit is without %q:\n%s", want, text)
		}
	}
	if !h.gets(from, to, true) {
		h.t.Error("a policy that was only audited is enforced")
	}
}

// TestPolicyWords asks a node with an isolated pod in words: who denied a packet, what policies say, and what they would
// say with another one.
func TestPolicyWords(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, friend, stranger := h.pod("server"), h.pod("friend"), h.pod("stranger")
	for _, p := range []*pod{server, friend, stranger} {
		h.mustAdd(p)
	}
	listenIn(t, server.Netns)
	h.serveFiles(shopNamespace, podManifest(server), podManifest(friend), podManifest(stranger), onlyFriends)
	h.until("the policy is enforced", func() bool { return !h.gets(stranger, server, true) })
	const by = "networkpolicy shop/friends, ingress: no rule accepts it"
	if e := h.denial(stranger, server); e.Policy != by || e.Rule == 0 || e.Direction != "out" || e.Source.Addr() != stranger.addr[true] {
		t.Errorf("the monitor says %+v", e)
	}
	if text := h.run("drops"); !strings.Contains(text, "ingress    "+by) {
		t.Errorf("drops are without %q:\n%s", by, text)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "networkpolicy shop/friends  ingress     1      1     -"},
		{[]string{"get", "shop/server"}, "Accept from pods app=friend in namespace shop: tcp 7 (networkpolicy shop/friends rule 1)"},
		{[]string{"get", "shop/friends"}, "is about pods app=server in namespace shop, here 1: shop/server"},
		{[]string{"explain", "shop/stranger", server.addr[true].String(), "7"}, "ingress of shop/server, 7/tcp: denied (" + by + ")"},
		{[]string{"explain", friend.addr[false].String(), "shop/server", "7/tcp"}, "ingress of shop/server, 7/tcp: accepted (networkpolicy shop/friends, ingress rule 1)"},
	} {
		if text := h.run(append([]string{"policy"}, tt.args...)...); !strings.Contains(text, tt.want) {
			t.Errorf("policy %v: %q is not in\n%s", tt.args, tt.want, text)
		}
	}
	h.audit(friend, server)
	if text := h.run("explain", stranger.addr[true].String(), netipPort(server, true)); !strings.Contains(text, "ingress of shop/server, 7/tcp: denied ("+by+")") {
		t.Errorf("explain does not say that it is denied:\n%s", text)
	}
	h.kill()
	if text := h.run("drops"); strings.Contains(text, by) || !strings.Contains(text, "ingress    rule ") {
		t.Errorf("without the agent, drops are:\n%s", text)
	}
	h.start()
	h.ready()
}
