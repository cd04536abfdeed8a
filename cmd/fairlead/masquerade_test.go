package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// TestMasqueradeConfig checks that the programs' map has the networks in the file, follows when the
// file is swapped while the agent runs, and keeps them while the file is invalid, also with the
// next agent.
func TestMasqueradeConfig(t *testing.T) {
	n := newNode(t)
	mounted := t.TempDir()
	path := filepath.Join(mounted, "config")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	publish := func(version, text string) { // as the kubelet mounts a ConfigMap
		t.Helper()
		must(os.Mkdir(filepath.Join(mounted, version), 0o755))
		must(os.WriteFile(filepath.Join(mounted, version, "config"), []byte(text), 0o644))
		must(os.Symlink(version, filepath.Join(mounted, "..data_tmp")))
		must(os.Rename(filepath.Join(mounted, "..data_tmp"), filepath.Join(mounted, "..data")))
	}
	must(os.Symlink("..data/config", path))
	start := func() {
		args := append([]string{
			"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--pod-network=main",
			"--pod-cidrs=10.1.0.0/24", "--native-cidrs=172.16.0.0/12", "--masquerade-config=" + path,
		}, n.flags...)
		n.agent = rig.NewChild(t, nil, n.ns, "fairlead", args...)
	}
	// The networks of the options are always in the map, so once they are listed, it has been
	// written.
	has := func(networks ...string) func() bool {
		return func() bool {
			out, err := rig.RunChild(nil, nil, "fairlead", append([]string{"map", "dump", "masq_skip"}, n.flags...)...)
			if err != nil || !strings.Contains(out, "172.16.0.0/12") || !strings.Contains(out, "10.1.0.0/24") {
				return false
			}
			for _, network := range networks {
				absent, without := strings.CutPrefix(network, "!")
				if strings.Contains(out, absent) == without {
					return false
				}
			}
			return true
		}
	}
	status := func() string { // the command fails while something is wrong
		out, _ := rig.RunChild(nil, nil, "fairlead", append([]string{"status"}, n.flags...)...)
		return out
	}

	must(n.ns.SetSysctl("net/ipv4/ip_forward", "1"))
	publish("..1", "nonMasqueradeCIDRs: [100.64.0.0/10, 'fd00:9::/32']\nresyncInterval: 60s\n")
	start()
	n.waitFor("the first version", has("100.64.0.0/10", "fd00:9::/32", "169.254.0.0/16", "fe80::/10"))
	n.waitFor("that status says so", func() bool { return strings.Contains(status(), "4 networks in "+path) })
	publish("..2", `{"nonMasqueradeCIDRs": ["100.65.0.0/16"], "masqLinkLocal": true}`)
	n.waitFor("the second version", has("100.65.0.0/16", "fe80::/10", "!100.64.0.0/10", "!fd00:9::/32", "!169.254.0.0/16"))
	publish("..3", "nonMasqueradeCIDRs: [100.66.0.0/16, elsewhere]\n")
	const complaint = `cannot be used. The 2 networks of the last good one apply: "elsewhere" of nonMasqueradeCIDRs is not a network`
	n.waitFor("what is wrong with the third", func() bool { return strings.Contains(status(), complaint) })
	if !has("100.65.0.0/16", "fe80::/10", "!100.66.0.0/16")() {
		t.Error("an invalid file has changed the map")
	}
	n.agent.Kill()
	start()
	n.waitFor("that the next agent knows what is wrong", func() bool { return strings.Contains(status(), complaint) })
	if !has("100.65.0.0/16", "fe80::/10", "!100.66.0.0/16")() {
		t.Error("with the next agent, an invalid file has changed the map")
	}
	publish("..4", "nonMasqueradeCIDRs: [100.66.0.0/16]\n")
	n.waitFor("the fourth version", has("100.66.0.0/16", "169.254.0.0/16", "!100.65.0.0/16"))
	if text := status(); strings.Contains(text, "cannot be used") {
		t.Errorf("status still complains:\n%s", text)
	}
}
