package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/test/rig"
)

// TestPodNetwork checks that an agent with a pod network answers the plugin, and says so. If it has
// no addresses to assign, it says what to do.
func TestPodNetwork(t *testing.T) {
	n := newNode(t)
	start := func(options ...string) {
		args := append([]string{
			"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--pod-network=main",
		}, append(options, n.flags...)...)
		n.agent = rig.NewChild(t, nil, n.ns, "fairlead", args...)
	}
	if err := n.ns.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	dir, _ := strings.CutPrefix(n.flags[1], "--state-dir=")
	plugin := &cni.Client{Path: filepath.Join(dir, cni.SocketName), Patience: 30 * time.Second}
	request := &cni.Request{
		Verb: cni.Allocate, Attachment: cni.Attachment{Network: "pods", Container: "0123456789abcdef", IfName: "eth0"},
		Pod: cni.Pod{Namespace: "shop", Name: "web-1"},
	}

	start("--pod-cidrs=10.1.0.0/24")
	answer, err := plugin.Ask(request, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Addresses) != 1 || answer.Addresses[0].String() != "10.1.0.1" || answer.MTU != 1500 {
		t.Errorf("the plugin gets %+v", answer)
	}
	n.run("status", "--wait", "--wait-duration=30s")
	var status observe.Status
	if err := json.Unmarshal([]byte(n.run("status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	if p := status.PodNetwork; p == nil || p.Error != "" || p.Addresses["IPv4"] != (podnet.AddressCount{Used: 1, Free: 253}) {
		t.Errorf("status says %+v", p)
	} else if want := "net.ipv4.ip_forward=1 net.ipv4.conf.DEVICE.rp_filter=0 net.ipv4.conf.DEVICE.forwarding=1 "; !strings.HasPrefix(strings.Join(p.Needed, " "), want) {
		t.Errorf("status lists the settings %q", p.Needed)
	}
	n.agent.Kill()
	for _, want := range []string{"10.1.0.1", "used", "shop/web-1", "0123456789ab ", request.Attachment.Device()} {
		if list := n.run("ipam", "list"); !strings.Contains(list, want) {
			t.Errorf("ipam list lacks %q:\n%s", want, list)
		}
	}

	start()
	_, err = plugin.Ask(&cni.Request{Verb: cni.Status}, nil)
	if refusal, ok := err.(*types.Error); !ok || refusal.Code != cni.ErrNotAvailable || !strings.Contains(refusal.Msg, "--pod-cidrs") {
		t.Errorf("without a podCIDR the plugin is told %v", err)
	}
	list := n.run("ipam", "list")
	if !strings.Contains(list, "cooling") { // its device never appeared
		t.Errorf("ipam list of later:\n%s", list)
	}
}

// TestNetkitOfTheKernel checks that a kind of device that the kernel lacks is refused before any
// pod waits for one.
func TestNetkitOfTheKernel(t *testing.T) {
	rig.Root(t)
	if podnet.HasNetkit() == nil {
		rig.Lacking(t, "no-netkit", "this kernel has netkit, and nothing is refused")
	}
	args := append([]string{"agent", "--source=" + t.TempDir(), "--node-name=a", "--pod-network=main", "--pod-cidrs=10.1.0.0/24", "--pod-device=netkit"}, nowhere(t)...)
	if got := fairlead(t, args...); got.code != 1 || !strings.Contains(got.stderr, "needs Linux 6.7 or newer with CONFIG_NETKIT; use --pod-device=veth") {
		t.Errorf("%+v", got)
	}
}
