package podnet

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// networkPolicy returns the manifest of a policy about the pods with a label app.
func networkPolicy(name, app, spec string) string {
	return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: shop}\n"+
		"spec: {podSelector: {matchLabels: {app: %s}}, %s}\n", name, app, spec)
}

// TestPoliciesHold asks without a pause what a policy accepts and what it denies, from old and from new
// sockets, while agents are killed, start and stop, and policies and pods that matter to neither change. No
// answer may be missing, and none may come that is denied.
func TestPoliciesHold(t *testing.T) {
	for _, routing := range []string{"bpf", "stack"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			policiesHold(t, routing)
		})
	}
}

func policiesHold(t *testing.T, routing string) {
	h := newOneNodeWithAgent(t, "--policies=enforce", "--host-routing="+routing)
	server, friend, stranger := h.pod("server"), h.pod("friend"), h.pod("stranger")
	for _, p := range []*pod{server, friend, stranger} {
		h.mustAdd(p)
	}
	listenIn(t, server.Netns)
	objects := shopNamespace + podManifest(server) + podManifest(friend) + podManifest(stranger) +
		networkPolicy("friends", "server", "ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]")
	h.serveFiles(objects)
	h.until("the policy is enforced", func() bool { return !h.gets(stranger, server, true) })
	accepted, denied := startTrickle(t, friend, server), startTrickle(t, stranger, server)

	h.kill()
	h.start()
	h.ready()
	h.restart()
	h.ready()
	for round := range 10 {
		spec := fmt.Sprintf("policyTypes: [Ingress, Egress], egress: [{to: [{ipBlock: {cidr: 10.%d.0.0/16}}], ports: [{port: %d, endPort: %d}]}]", round, 100+round, 200+round)
		more := networkPolicy("other", "other", spec) +
			networkPolicy("again", "server", "ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [friend, x"+fmt.Sprint(round)+"]}]}}]}]")
		p := h.pod(fmt.Sprint("other", round))
		h.mustAdd(p)
		h.serveFiles(objects, strings.ReplaceAll(podManifest(p), "app: "+p.id, "app: other"), more)
		h.until("its policy holds", func() bool { return strings.Contains(h.run("status"), "about 2 pods of this node") })
		h.must(h.del(p))
		h.until("it is forgotten", func() bool { return strings.Contains(h.run("status"), "about 1 pods of this node") })
	}
	h.serveFiles(objects, "---\napiVersion: [\n")
	h.restart() // with files that cannot be read
	accepted.allAnswered()
	denied.noneAnswered()
}

// TestPoliciesCut checks that flows which have answers on the way end with the policy that denies them: the
// first about a pod, and an edited one.
func TestPoliciesCut(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, stranger := h.pod("server"), h.pod("stranger")
	h.mustAdd(server)
	h.mustAdd(stranger)
	listenIn(t, server.Netns)
	asking := startTrickle(t, stranger, server)
	objects := shopNamespace + podManifest(server) + podManifest(stranger)
	var before tally
	for _, from := range []string{"nobody", "stranger", "nobody"} {
		policy := networkPolicy("few", "server", "ingress: [{from: [{podSelector: {matchLabels: {app: "+from+"}}}]}]")
		h.serveFiles(objects, policy)
		h.until("the policy is enforced", func() bool { return h.gets(stranger, server, true) == (from == "stranger") })
		first := asking.now()
		time.Sleep(time.Second) // so long it goes on asking
		have := asking.now()
		t.Logf("%s may: %+v, then %+v", from, first, have)
		if have.OldAsked == first.OldAsked || first.OldAnswered == before.OldAnswered {
			t.Error("nothing was asked or answered")
		}
		if goesOn := have.OldAnswered != first.OldAnswered; goesOn != (from == "stranger") {
			t.Errorf("answers to one who is not accepted, or none to one who is: %+v, then %+v", first, have)
		}
		before = have
	}
	asking.stop()
}
