package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/test/rig"
)

// TestBigTCP checks that if told to, the agent raises the sizes of the node's devices, tells them
// to the plugin and in the status, and says why a size is not raised. The next agent and cleanup
// restore them.
func TestBigTCP(t *testing.T) {
	n := newNode(t)
	rig.Veth(t, n.ns, "eth0", rig.NewNetns(t, "network"), "node0")
	rig.Address(t, n.ns, "eth0", "192.0.2.1/24", "2001:db8::1/64")
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := n.ns.SetSysctl(name, "1"); err != nil {
			t.Fatal(err)
		}
	}
	plugin := &cni.Client{Path: filepath.Join(strings.TrimPrefix(n.flags[1], "--state-dir="), cni.SocketName), Patience: 30 * time.Second}
	start := func(options ...string) {
		t.Helper()
		n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append(append([]string{
			"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--pod-network=main",
			"--pod-cidrs=10.1.0.0/24", "--devices=eth0",
		}, options...), n.flags...)...)
		if _, err := plugin.Ask(&cni.Request{Verb: cni.Status}, nil); err != nil {
			t.Fatal(err)
		}
	}
	const usual, large = 64 << 10, 192 << 10
	require := func(v4, v6 int) {
		t.Helper()
		if err := n.ns.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			at := link.Attrs()
			have := fmt.Sprint(at.GSOMaxSize, at.GROMaxSize, at.GSOIPv4MaxSize, at.GROIPv4MaxSize)
			if want := fmt.Sprint(v6, v6, v4, v4); have != want {
				t.Errorf("eth0 takes %s, want %s", have, want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	wantAnswer := func(v4, v6 int) {
		t.Helper()
		answer, err := plugin.Ask(&cni.Request{
			Verb: cni.Allocate, Attachment: cni.Attachment{Network: "fairlead", Container: "c", IfName: "eth0"}, Pod: cni.Pod{Namespace: "shop", Name: "web-1"},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Largest != (cni.Largest{V4: v4, V6: v6}) {
			t.Errorf("the plugin is told %+v", answer.Largest)
		}
	}
	require(usual, usual)

	start("--big-tcp=true")
	require(large, large)
	wantAnswer(large, large)
	n.agent.Kill()
	start("--big-tcp=true", "--host-routing=stack")
	require(large, usual)
	wantAnswer(large, 0)
	var status observe.Status
	if err := json.Unmarshal([]byte(n.run("status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	if b := status.PodNetwork.BigTCP; b == nil || b.V4 != large || b.V6 != 0 || !strings.Contains(b.Why6, "--host-routing=stack") {
		t.Errorf("status says %+v", b)
	}
	n.agent.Kill()
	start()
	require(usual, usual)
	wantAnswer(0, 0)
	n.agent.Kill()

	start("--big-tcp=true")
	n.agent.Kill()
	if out := rig.Child(t, nil, n.ns, "fairlead", append([]string{"cleanup"}, n.flags...)...); !strings.Contains(out, "the size of TCP packets of device eth0") {
		t.Errorf("cleanup says %s", out)
	}
	require(usual, usual)
}
