package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

// everything is what a node's network is like: all its settings, devices, addresses, routes and rules, with the programs at
// devices and at the cgroup, and what is pinned.
func (n *node) everything() (lines []string) {
	n.t.Helper()
	say := func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); !ofModule.MatchString(line) {
			lines = append(lines, line)
		}
	}
	err := n.ns.Do(func() error {
		if err := filepath.WalkDir(filepath.Join(procSys, "net"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, fs.ErrPermission) { // neither set nor to be read
				return err
			}
			say("%s = %q", path, content)
			return nil
		}); err != nil {
			return err
		}
		return errors.Join(netlinks(say), routesAndRules(say))
	})
	if err != nil {
		n.t.Fatal(err)
	}
	for attach := ebpf.AttachCGroupInetIngress; attach <= ebpf.AttachCgroupUnixGetsockname; attach++ {
		cgroup, err := os.Open(n.cgroup.Path())
		if err != nil {
			n.t.Fatal(err)
		}
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(cgroup.Fd()), Attach: attach})
		if err == nil && len(found.Programs) > 0 {
			say("%d programs at the cgroup for %s", len(found.Programs), attach)
		}
		cgroup.Close()
	}
	if err := filepath.WalkDir(n.bpffs, func(path string, _ fs.DirEntry, err error) error { say("pinned %s", path); return err }); err != nil {
		n.t.Fatal(err)
	}
	return lines
}

// ofModule is what a module brings to all namespaces when somebody on the machine is the first to need it.
var ofModule = regexp.MustCompile(`net/netfilter/|nf_conntrack|\b(tunl0|sit0|ip6tnl0|gre0|gretap0|erspan0|ip6gre0|ip_vti0|ip6_vti0)\b`)

func netlinks(say func(string, ...any)) error {
	all, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range all {
		at := l.Attrs()
		say("device %s %s mtu %d flags %v xdp %v", at.Name, l.Type(), at.MTU, at.Flags, at.Xdp != nil && at.Xdp.Attached)
		for _, attach := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			if found, err := link.QueryPrograms(link.QueryOptions{Target: at.Index, Attach: attach}); err == nil && len(found.Programs) > 0 {
				say("%d programs at %s for %s", len(found.Programs), at.Name, attach)
			}
		}
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			return err
		}
		for _, q := range qdiscs {
			say("%s at %s", q.Type(), at.Name)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			say("address %s of %s", a.IPNet, at.Name)
		}
	}
	return nil
}

func routesAndRules(say func(string, ...any)) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for i := range list {
			say("route %s", list[i])
		}
		rules, err := netlink.RuleList(family)
		if err != nil {
			return err
		}
		for i := range rules {
			say("rule %s", rules[i])
		}
	}
	return nil
}

// What init and an agent changed at a node is after cleanup as it was before, whatever that was.
func TestNothingIsLeft(t *testing.T) {
	n := newNode(t)
	rig.Veth(t, n.ns, "eth0", rig.NewNetns(t, "network"), "node0")
	rig.Address(t, n.ns, "eth0", "192.0.2.1/24", "2001:db8::1/64")
	for _, of := range []string{"eth0", "lo", "default"} { // all are off, but not these
		if err := n.ns.SetSysctl("net/ipv6/conf/"+of+"/forwarding", "1"); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{
		"net/ipv4/ip_forward": "0", "net/ipv4/conf/all/accept_redirects": "0", "net/ipv4/conf/lo/forwarding": "1",
		"net/ipv6/conf/eth0/accept_ra": "1", "net/ipv6/conf/lo/accept_ra": "2",
	} {
		if err := n.ns.SetSysctl(name, value); err != nil {
			t.Fatal(err)
		}
	}
	n.service("127.0.0.1")
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
		t.Errorf("that is all an agent does:\n%s", diff)
	}
	n.agent.Kill()
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

// What somebody else set after init stays, and what is of another start of the kernel says nothing.
func TestPutBack(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	write := func(name, value string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o700), os.WriteFile(at(name), []byte(value+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	const first, second, forward = "net/ipv6/conf/eth0/accept_ra", "net/ipv6/conf/eth1/accept_ra", "net/ipv6/conf/all/forwarding"
	set := func() {
		t.Helper()
		for name, value := range map[string]string{"kernel/random/boot_id": "one", forward: "0", first: "1", second: "1"} {
			write(name, value)
		}
		if _, err := setForwarding(root, dir); err != nil {
			t.Fatal(err)
		}
	}
	want := func(changed []string, values map[string]string) {
		t.Helper()
		got, err := putBack(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(changed, got); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		for name, value := range values {
			if is, err := readSetting(at(name)); err != nil || is != value {
				t.Errorf("%s is %q, want %q: %v", name, is, value, err)
			}
		}
	}
	write("kernel/random/boot_id", "one")
	want(nil, nil) // nothing was noted
	set()
	write(second, "0")
	want([]string{"net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.eth0.accept_ra=1"}, map[string]string{forward: "0", first: "1", second: "0"})
	want(nil, map[string]string{forward: "0"}) // once
	set()
	write("kernel/random/boot_id", "two")
	want(nil, map[string]string{forward: "1", first: "2"})
	for _, noted := range []string{"{", `{"boot": "two", "files": {"../x": {"was": "1"}}}`, `{"boot": "two", "files": {"kernel/panic": {"was": "1"}}}`} {
		if err := os.WriteFile(filepath.Join(dir, settingsFile), []byte(noted), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := putBack(root, dir); err == nil {
			t.Errorf("%s was taken", noted)
		}
	}
}
