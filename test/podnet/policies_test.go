package podnet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// podManifest returns the Pod as the API server has it once it runs.
func podManifest(p *pod) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop, labels: {app: %s}}\nspec: {nodeName: node-a}\n"+
		"status: {phase: Running, podIP: %s, podIPs: [{ip: %s}, {ip: '%s'}]}\n", p.id, p.id, p.addr[true], p.addr[true], p.addr[false])
}

const (
	shopNamespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"
	// onlyFriends lets the pod called friend in to that called server.
	onlyFriends = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: friends, namespace: shop}\n" +
		"spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}], ports: [{port: 7}]}]}\n"
)

// serveFiles replaces the manifests of the node.
func (h *oneNodeWithAgent) serveFiles(texts ...string) {
	h.t.Helper()
	h.must(os.WriteFile(filepath.Join(h.files, ".new"), []byte(strings.Join(texts, "")), 0o644))
	h.must(os.Rename(filepath.Join(h.files, ".new"), filepath.Join(h.files, "objects.yaml")))
}

// gets reports whether a pod gets an answer from another one.
func (h *oneNodeWithAgent) gets(from, to *pod, is4 bool) bool {
	h.t.Helper()
	answer := h.knock(from, fmt.Sprintf("%s/tcp/%s", silence, netipPort(to, is4)))
	return answer == from.addr[is4].String()
}

func netipPort(p *pod, is4 bool) string {
	if is4 {
		return p.addr[is4].String() + ":7"
	}
	return "[" + p.addr[is4].String() + "]:7"
}

func (h *oneNodeWithAgent) knock(from *pod, place string) string {
	h.t.Helper()
	out, err := rig.RunChild(nil, from.Netns, "knock", place)
	if err != nil {
		h.t.Fatalf("ask from %s: %v", from.id, err)
	}
	return strings.Trim(out, "[]\"\n")
}

// TestPolicies runs an agent that reads a NetworkPolicy: it holds for both families, without the agent
// and with the next one, and until it is removed.
func TestPolicies(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, friend, stranger := h.pod("server"), h.pod("friend"), h.pod("stranger")
	for _, p := range []*pod{server, friend, stranger} {
		h.mustAdd(p)
	}
	listenIn(t, server.Netns)
	pods := shopNamespace + podManifest(server) + podManifest(friend) + podManifest(stranger)
	check := func(when string, strangers bool) {
		t.Helper()
		for is4 := range server.addr {
			if !h.gets(friend, server, is4) {
				t.Errorf("%s: the pod that the policy accepts gets no answer, IPv4: %t", when, is4)
			}
			if have := h.gets(stranger, server, is4); have != strangers {
				t.Errorf("%s: another pod gets an answer: %t, IPv4: %t", when, have, is4)
			}
		}
	}
	h.serveFiles(pods)
	check("without policies", true)
	h.serveFiles(pods, onlyFriends)
	h.until("the policy is enforced", func() bool { return !h.gets(stranger, server, true) })
	check("with the policy", false)
	h.kill()
	check("without the agent", false)
	h.start()
	check("while the next one starts", false)
	h.ready()
	check("with the next one", false)
	h.serveFiles(pods)
	h.until("the policy is gone", func() bool { return h.gets(stranger, server, true) })
	check("without policies again", true)
}
