package podnet

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/test/rig"
)

// TestPoliciesVerify deletes what policies say from a map, by hand: then nothing is accepted that was not. The agent
// says what differs, and what the policy accepts is accepted again once it has mended it.
func TestPoliciesVerify(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server, friend, stranger := h.pod("server"), h.pod("friend"), h.pod("stranger")
	objects := shopNamespace + onlyFriends
	for _, p := range []*pod{server, friend, stranger} {
		h.mustAdd(p)
		objects += podManifest(p)
	}
	listenIn(t, server.Netns)
	h.serveFiles(objects)
	h.until("the policy is enforced", func() bool { return !h.gets(stranger, server, true) && h.gets(friend, server, true) })
	h.run("verify")

	rows, err := ebpf.LoadPinnedMap(filepath.Join(h.bpffs, "fairlead/v1/maps/policy_decisions"), nil)
	h.must(err)
	defer rows.Close()
	deleted, key := 0, make([]byte, rows.KeySize())
	for rows.NextKey(nil, key) == nil {
		h.must(rows.Delete(key))
		deleted++
	}
	if h.gets(friend, server, true) || h.gets(stranger, server, true) {
		t.Error("something is accepted of which the map says nothing")
	}
	args := append([]string{filepath.Join(command.in(t), "fairlead"), "verify"}, h.flags...)
	if out, err := rig.RunChild(nil, h.ns, "fairlead", args...); err == nil || strings.Count(out, "policy_decisions") != deleted {
		t.Errorf("%d rows were deleted, and it says %v:\n%s", deleted, err, out)
	}
	h.run("verify", "--repair")
	if !h.gets(friend, server, true) || h.gets(stranger, server, true) {
		t.Errorf("it was mended, and not what the policy says holds\n%s", h.statusText())
	}
	h.run("verify")
}
