package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
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
