package podnet

import (
	"fmt"
	"strings"
	"testing"
)

// TestPoliciesGrow has the maps of services grow: policies that come later are enforced all the same.
func TestPoliciesGrow(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, friend, stranger := h.pod("server"), h.pod("friend"), h.pod("stranger")
	objects := shopNamespace
	for _, p := range []*pod{server, friend, stranger} {
		h.mustAdd(p)
		objects += podManifest(p)
	}
	listenIn(t, server.Netns)
	h.serveFiles(objects, onlyFriends)
	h.until("the first policy is enforced", func() bool { return h.gets(friend, server, true) && !h.gets(stranger, server, true) })

	var services strings.Builder
	const many = 1100 // a small cluster's map has room for 1,024
	for i := range many {
		fmt.Fprintf(&services, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {clusterIP: 10.96.%d.%d, ports: [{port: 80}]}\n", i, i/250, 1+i%250)
	}
	h.serveFiles(objects, onlyFriends, services.String())
	h.until("the services are known", func() bool { return strings.Contains(h.statusText(), fmt.Sprintf("services     %d,", many)) })
	closed := networkPolicy("closed", "friend", "policyTypes: [Egress]")
	h.serveFiles(objects, onlyFriends, services.String(), closed)
	h.until("the second policy is enforced", func() bool { return !h.gets(friend, server, true) && !h.gets(friend, server, false) })
	h.serveFiles(objects, services.String())
	h.until("no policy is enforced", func() bool { return h.gets(stranger, server, true) && h.gets(friend, server, false) })
	h.ready()
}
