package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/test/rig"
)

// degradation returns what the node's status says is wrong.
func (n *node) degradation() []string {
	n.t.Helper()
	out, err := rig.RunChild(nil, n.ns, "fairlead", append([]string{"status", "-o", "json"}, n.flags...)...)
	var status observe.Status
	if jsonErr := json.Unmarshal([]byte(strings.TrimSpace(out)), &status); jsonErr != nil {
		n.t.Fatalf("%v, %v in %s", err, jsonErr, out)
	}
	return status.Degraded
}

// TestFullStateDirectory checks that a node that cannot add pods, because it cannot write their
// records, is degraded and says what to do, and is healthy again once there is room.
func TestFullStateDirectory(t *testing.T) {
	n := newNode(t)
	dir := strings.TrimPrefix(n.flags[1], "--state-dir=")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("fairlead-test", dir, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := n.ns.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	args := []string{"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--pod-network=main", "--pod-cidrs=10.1.0.0/24"}
	n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append(args, n.flags...)...)
	n.run("status", "--wait", "--wait-duration=30s")
	plugin := &cni.Client{Path: filepath.Join(dir, cni.SocketName), Patience: 30 * time.Second}

	filler := filepath.Join(dir, "filler")
	_ = os.WriteFile(filler, make([]byte, 1<<20), 0o600) // fails once the file system is full
	cannot := func(why string) func(string) bool {
		return func(s string) bool {
			return strings.HasPrefix(s, "No pod can be added to this node: ") && strings.Contains(s, why)
		}
	}
	if said := n.degradation(); !slices.ContainsFunc(said, cannot("make room there; \"df "+dir)) {
		t.Errorf("with a full directory: %q", said)
	}
	if _, err := plugin.Ask(&cni.Request{Verb: cni.Status}, nil); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("with a full directory the runtime is told: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if said := n.degradation(); len(said) > 0 {
		t.Errorf("with room again: %q", said)
	}
}

// TestCarrierLoss checks that a node whose device has lost its carrier says so.
func TestCarrierLoss(t *testing.T) {
	s := newServed(t, outsideServices)
	lost := func(sentence string) bool { return strings.HasPrefix(sentence, "Device eth0 has no carrier") }
	if said := s.degradation(); slices.ContainsFunc(said, lost) {
		t.Fatalf("before: %q", said)
	}
	err := s.client.Do(func() error {
		link, err := netlink.LinkByName("eth0") // the other end
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(link)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.waitFor("the node says that the carrier is lost", func() bool { return slices.ContainsFunc(s.degradation(), lost) })
}

// TestStatusCountsAsVerify checks that status and verify count the same, with an agent and without,
// where a pod is also hosted for other nodes and two Services want one address.
func TestStatusCountsAsVerify(t *testing.T) {
	s := newServed(t, strings.ReplaceAll(outsideServices, "type: NodePort,", "type: NodePort, externalIPs: [192.0.2.99],"), "--dsr-accept=true")
	counts := regexp.MustCompile(`(\d+),? (?:services, |with )(\d+) frontends and (\d+) backends`)
	count := func(command string) []string {
		out, _ := rig.RunChild(nil, s.ns, "fairlead", append([]string{command}, s.flags...)...) // verify fails without an agent
		found := counts.FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("%s tells no counts:\n%s", command, out)
		}
		return found[1:]
	}
	m, err := maps.Open(datapath.MapsDir(s.bpffs), true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	hosted := func() (n int) {
		var key maps.SvcKey
		var row maps.Svc
		for all := m.Svcs.Iterate(); all.Next(&key, &row); {
			if maps.IsHosted(key) {
				n++
			}
		}
		return n
	}
	s.waitFor("the pod is hosted", func() bool { return hosted() > 0 })
	want := count("status")
	if got := count("verify"); !slices.Equal(got, want) || want[1] != "5" {
		t.Errorf("verify counts %v services, frontends and backends, status %v, want 5 frontends", got, want)
	}
	s.agent.Kill()
	for _, command := range []string{"status", "verify"} {
		if got := count(command); !slices.Equal(got, want) {
			t.Errorf("without an agent %s counts %v services, frontends and backends, want %v", command, got, want)
		}
	}
}
