package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
	"fairlead.io/fairlead/test/snapshot"
)

// everything lists the state of a node's network.
func (n *node) everything() (lines []string) {
	n.t.Helper()
	err := n.ns.Do(func() (err error) {
		lines, err = snapshot.Take(snapshot.Places{Cgroup: n.cgroup.Path(), Dirs: []string{n.bpffs, strings.TrimPrefix(n.flags[1], "--state-dir=")}})
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return lines
}

// TestNothingIsLeft checks that cleanup restores what init and an agent changed on a node, whatever
// it was before.
func TestNothingIsLeft(t *testing.T) {
	for _, accept := range []string{"0", "1"} {
		t.Run("accept_local="+accept, func(t *testing.T) { nothingIsLeft(t, accept) })
	}
}

func nothingIsLeft(t *testing.T, acceptLocal string) {
	n := newNode(t)
	rig.Veth(t, n.ns, "eth0", rig.NewNetns(t, "network"), "node0")
	rig.Address(t, n.ns, "eth0", "192.0.2.1/24", "2001:db8::1/64")
	for _, of := range []string{"eth0", "lo", "default"} { // all settings are off except these
		if err := n.ns.SetSysctl("net/ipv6/conf/"+of+"/forwarding", "1"); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"net/ipv4/ip_forward": "0", "net/ipv4/conf/all/accept_redirects": "0", "net/ipv4/conf/lo/forwarding": "1", "net/ipv4/conf/lo/accept_local": acceptLocal,
		"net/ipv6/conf/eth0/accept_ra": "1", "net/ipv6/conf/lo/accept_ra": "2",
	} {
		if err := n.ns.SetSysctl(name, value); err != nil {
			t.Fatal(err)
		}
	}
	n.service("198.18.0.1")
	n.write("nodes.yaml", `
apiVersion: v1
kind: Node
metadata: {name: node-a, uid: a}
spec: {podCIDRs: [10.1.0.0/24, "fd00:1::/64"]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b, uid: b}
spec: {podCIDRs: [10.2.0.0/24, "fd00:2::/64"]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
`)
	in := func(args ...string) string { return rig.Child(t, nil, n.ns, "fairlead", append(args, n.flags...)...) }
	before := n.everything()
	in("init", "--cgroup-root="+n.cgroup.Path(), "--devices=eth0")
	n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append([]string{
		"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--pod-network=main",
		"--routing=vxlan", "--devices=eth0",
	}, n.flags...)...)
	n.run("status", "--wait", "--wait-duration=30s")
	plugin := &cni.Client{Path: filepath.Join(strings.TrimPrefix(n.flags[1], "--state-dir="), cni.SocketName)}
	if _, err := plugin.Ask(&cni.Request{
		Verb: cni.Allocate, Attachment: cni.Attachment{Network: "fairlead", Container: "c", IfName: "eth0"}, Pod: cni.Pod{Namespace: "shop", Name: "web-1"},
	}, nil); err != nil {
		t.Fatal(err)
	}
	n.waitFor("there is a way to the other node's pods", func() bool {
		return strings.Contains(strings.Join(n.everything(), "\n"), netip.MustParsePrefix("10.2.0.0/24").String())
	})
	if diff := cmp.Diff(before, n.everything()); strings.Count(diff, "\n+") < 30 {
		t.Errorf("the agent changed no more than this:\n%s", diff)
	}
	n.agent.Kill()
	servers := filepath.Join(strings.TrimPrefix(n.flags[1], "--state-dir="), "api-servers")
	// As an agent in a cluster does.
	if err := os.WriteFile(servers, []byte("192.0.2.1:6443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := in("cleanup")
	for _, want := range []string{"put back net.ipv4.ip_forward=0\n", "put back net.ipv6.conf.eth0.accept_ra=1\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("cleanup does not say %q:\n%s", want, out)
		}
	}
	if diff := cmp.Diff(before, n.everything()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}
