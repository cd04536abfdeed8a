package podnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// crop replaces a map of policies that no agent has open by one that its rows fill, and returns how many it has.
func (h *oneNodeWithAgent) crop(name string) uint32 {
	h.t.Helper()
	path := filepath.Join(h.bpffs, "fairlead/v1/maps", name)
	large, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	defer large.Close()
	var keys, rows [][]byte
	key, row := make([]byte, large.KeySize()), make([]byte, large.ValueSize())
	all := large.Iterate()
	for all.Next(&key, &row) {
		keys, rows = append(keys, append([]byte{}, key...)), append(rows, append([]byte{}, row...))
	}
	info, err := large.Info()
	if err := errors.Join(err, all.Err()); err != nil {
		h.t.Fatal(err)
	}
	small, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: info.Name, Type: info.Type, KeySize: info.KeySize, ValueSize: info.ValueSize, MaxEntries: max(1, uint32(len(keys))), Flags: uint32(info.Flags),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	defer small.Close()
	for i := range keys {
		err = errors.Join(err, small.Put(keys[i], rows[i]))
	}
	if err := errors.Join(err, os.Remove(path), small.Pin(path)); err != nil {
		h.t.Fatal(err)
	}
	return small.MaxEntries()
}

// TestPoliciesOutgrow lets policies come to more than their maps have room for. A connection that is accepted goes
// on meanwhile, and what comes later is enforced.
func TestPoliciesOutgrow(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, friend, stranger := h.pod("server"), h.pod("friend"), h.pod("stranger")
	objects := shopNamespace
	for _, p := range []*pod{server, friend, stranger} {
		h.mustAdd(p)
		objects += podManifest(p)
	}
	listenIn(t, server.Netns)
	friends := networkPolicy("friends", "server", "ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]")
	h.serveFiles(objects, friends)
	h.until("the policy is enforced", func() bool { return h.gets(friend, server, true) && !h.gets(stranger, server, true) })
	h.kill()
	room := map[string]uint32{}
	for _, name := range []string{"policy_peers", "policy_regions", "policy_views", "policy_decisions"} {
		room[name] = h.crop(name)
	}
	h.start()
	h.ready()
	asking := startTrickle(t, friend, server)

	more := ""
	for i := range 30 {
		app := fmt.Sprintf("app%d", i)
		more += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, namespace: shop, uid: %[1]s, labels: {app: %[1]s}}\nspec: {nodeName: elsewhere}\n"+
			"status: {phase: Running, podIPs: [{ip: 10.97.0.%[2]d}, {ip: \"fd97::%[2]x\"}]}\n", app, i+1)
		more += networkPolicy(app, "server", fmt.Sprintf("ingress: [{from: [{podSelector: {matchLabels: {app: %s}}}, {ipBlock: {cidr: 10.98.%d.0/24}}], ports: [{port: %d}]}]", app, i, 100+i))
	}
	strangers := networkPolicy("strangers", "server", "ingress: [{from: [{podSelector: {matchLabels: {app: stranger}}}]}]")
	h.serveFiles(objects, friends, more, strangers)
	h.until("what came last is enforced", func() bool { return h.gets(stranger, server, true) && h.gets(stranger, server, false) })
	h.ready()
	for name, was := range room {
		m, err := ebpf.LoadPinnedMap(filepath.Join(h.bpffs, "fairlead/v1/maps", name), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s had %d rows, and has %d", name, was, m.MaxEntries())
		if m.MaxEntries() < 2*was {
			t.Errorf("%s had %d rows, and has %d", name, was, m.MaxEntries())
		}
		m.Close()
	}
	asking.allAnswered()
	h.serveFiles(objects, friends)
	h.until("only friends are accepted", func() bool { return !h.gets(stranger, server, true) && h.gets(friend, server, true) })
}

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
