package podnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// roadstead is a node whose pods have their network from another plugin, at a bridge, and whose
// agent lets them bypass TCP and does nothing else.
type roadstead struct {
	*oneNodeThreePods
	prove func() // runs "fairlead init"
}

func newRoadstead(t *testing.T) *roadstead {
	t.Helper()
	h := &oneNodeWithAgent{
		node:   &node{t: t, ns: rig.NewNetns(t, "node"), agentConfig: agentConfig{Dir: filepath.Join(t.TempDir(), "run")}, cache: t.TempDir()},
		cgroup: rig.NewCgroup(t), files: t.TempDir(), bpffs: rig.BPFFS(t),
	}
	rig.Address(t, h.ns, "lo", "192.0.2.1/32")
	rig.Bridge(t, h.ns, "br0")
	rig.Address(t, h.ns, "br0", "10.9.0.1/24", "fd09::1/64")
	h.flags = []string{"--bpffs=" + h.bpffs, "--state-dir=" + h.Dir}
	own := []string{"--mode=accelerate-only"}
	fairlead := filepath.Join(command.in(t), "fairlead")
	prove := func() {
		rig.Child(t, h.cgroup, h.ns, "fairlead", append(append([]string{fairlead, "init"}, own...), h.flags...)...)
	}
	prove()
	h.whole = func() *rig.Process {
		args := append(append([]string{fairlead, "agent", "--source=" + h.files, "--node-name=node-a", "--cni-cache=" + h.cache, "--log-level=warn",
			"--ready-address=" + metricsAddress, "--metrics-address=" + metricsAddress}, own...), h.flags...)
		return rig.NewChild(t, nil, h.ns, "fairlead", args...)
	}
	q := &roadstead{&oneNodeThreePods{oneNodeWithAgent: h, pods: map[string]*pod{}}, prove}
	for i, name := range []string{"a", "b", "c"} {
		q.berth(name, i+2)
		q.says(rig.NewChild(t, h.cgroup, q.pods[name].Netns, "sayBack", "80"), "ready")
	}
	return q
}

// berth makes a pod as another plugin does, and records it as the runtime does.
func (q *roadstead) berth(name string, last int) {
	q.t.Helper()
	p := q.pod(name)
	p.addr[true], p.addr[false] = netip.AddrFrom4([4]byte{10, 9, 0, byte(last)}), netip.MustParseAddr(fmt.Sprintf("fd09::%d", last))
	rig.Veth(q.t, q.ns, "veth-"+name, p.Netns, "eth0")
	q.must(q.ns.Do(func() error {
		port, err := netlink.LinkByName("veth-" + name)
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(port, bridge), netlink.LinkSetUp(port))
	}))
	rig.Address(q.t, p.Netns, "eth0", p.addr[true].String()+"/24", p.addr[false].String()+"/64")
	q.pods[name] = p
	q.note(name, q.cache)
}

// note records a pod's network namespace in a directory as the runtime does.
func (q *oneNodeThreePods) note(name, cache string) {
	q.t.Helper()
	const dir = "/run/netns"
	q.must(os.MkdirAll(dir, 0o755))
	file, err := os.CreateTemp(dir, "fairlead-test-")
	q.must(err)
	q.must(errors.Join(file.Close(), unix.Mount(q.pods[name].Netns.Path(), file.Name(), "", unix.MS_BIND, "")))
	q.t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(file.Name(), unix.MNT_DETACH), os.Remove(file.Name())); err != nil {
			q.t.Error(err)
		}
	})
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": name, "ifName": "eth0", "networkName": "other", "netns": file.Name(),
		"cniArgs": [][]string{{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", "uid-" + name}},
	})
	q.must(err)
	q.must(os.WriteFile(filepath.Join(cache, "other-"+name+"-eth0"), text, 0o600))
}

// attached returns the programs attached to a hook of the cgroup.
func (q *roadstead) attached(at ebpf.AttachType) []ebpf.ProgramID {
	q.t.Helper()
	dir, err := os.Open(q.cgroup.Path())
	q.must(err)
	defer dir.Close()
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: at})
	q.must(err)
	var list []ebpf.ProgramID
	for _, p := range found.Programs {
		list = append(list, p.ID)
	}
	return list
}

// another attaches a program of a third party to the cgroup.
func (q *roadstead) another() ebpf.ProgramID {
	q.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	q.must(err)
	l, err := link.AttachCgroup(link.CgroupOptions{Path: q.cgroup.Path(), Attach: ebpf.AttachCGroupInet4Connect, Program: program})
	q.must(err)
	q.t.Cleanup(func() { q.must(errors.Join(l.Close(), program.Close())) })
	info, err := program.Info()
	q.must(err)
	id, _ := info.ID()
	return id
}

// TestAccelerateOnly checks that an agent with --mode=accelerate-only lets selected pods bypass TCP
// next to another network and another implementation of Services, and that it installs nothing
// else.
func TestAccelerateOnly(t *testing.T) {
	rig.MapIterators(t)
	q := newRoadstead(t)
	theirs := q.another()
	alone := func(when string) {
		t.Helper()
		if have := q.attached(ebpf.AttachCGroupInet4Connect); len(have) != 1 || have[0] != theirs {
			t.Errorf("%s: programs %v at connect, and there should be %d alone", when, have, theirs)
		}
	}
	q.write(map[string]string{"a": `fairlead.io/accelerate: "true"`, "b": `fairlead.io/accelerate: "true"`, "c": `fairlead.io/accelerate: "maybe"`}, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [10.9.0.3], conditions: {ready: true}}]
`)
	q.start()
	q.until("an agent answers", func() bool { return strings.Contains(q.statusText(), "mode ") })
	q.takesPart(2)
	q.ready()
	ab, cb := q.chat("a", "b"), q.chat("c", "b")
	q.ask(cb, 20)
	q.bypass([]*rig.Process{ab}, "shop/a", "shop/b")
	alone("while it runs")
	if entries, err := os.ReadDir(filepath.Join(q.bpffs, "fairlead")); err != nil || len(entries) != 1 || entries[0].Name() != "sockmap" {
		t.Errorf("pinned is more than what lets connections go past TCP: %v, %v", entries, err)
	}
	text := q.statusText()
	for _, part := range []string{"mode ", "accelerate-only: connections between pods may bypass TCP", "acceleration", "2 pods may take part", "InvalidAccelerate", "\nhealthy\n"} {
		if !strings.Contains(text, part) {
			t.Errorf("the status has no %q:\n%s", part, text)
		}
	}
	if strings.Contains(text, "services") || strings.Contains(text, "datapath") {
		t.Errorf("the status tells of what is not there:\n%s", text)
	}
	if answer := q.get("/readyz"); !strings.Contains(answer, " 200 ") {
		t.Error(answer)
	}
	if answer := q.get("/metrics"); !strings.Contains(answer, "\nfairlead_sockmap_on 1\n") || !strings.Contains(answer, "\nfairlead_degraded 0\n") ||
		strings.Contains(answer, "fairlead_map_") || strings.Contains(answer, "kubeproxy") {
		t.Error(answer)
	}

	if text := q.run("bugreport", "--file="+filepath.Join(t.TempDir(), "bundle.tar.gz")); strings.Contains(text, "not all of") {
		t.Error(text)
	}

	q.run("sockmap", "off")
	before := q.list()[0].Redirected
	q.ask(ab, 20)
	if after := q.list()[0].Redirected; after != before {
		t.Errorf("when it is off %v bytes have gone past TCP, and %v before", after, before)
	}
	q.run("sockmap", "on")
	q.restart()
	q.ready()
	q.until("they speak past TCP again", func() bool { q.ask(ab, 40); return q.list()[0].Redirected != before })

	q.kill()
	if text := q.statusText(); !strings.Contains(text, "accelerate-only") || !strings.Contains(text, "no others start to") || strings.Contains(text, "no fairlead maps") {
		t.Errorf("without an agent the status is\n%s", text)
	}
	q.run("cleanup")
	alone("after a cleanup")
	if _, err := os.Stat(filepath.Join(q.bpffs, "fairlead")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left is %v", err)
	}
	q.ask(ab, 20)
	q.ask(cb, 1)
}

// TestAccelerateWithNode checks that connections between processes in the node's own namespace, as pods
// with hostNetwork have them, and the pods that a policy selects bypass TCP, whoever connects, and that
// those with other pods do not.
func TestAccelerateWithNode(t *testing.T) {
	rig.MapIterators(t)
	for ends, to := range map[string]string{
		"from: [{podSelector: {matchLabels: {app: a}}}], to: [{node: true}]": "node",
		"from: [{node: true}], to: [{podSelector: {matchLabels: {app: a}}}]": "shop/a",
	} {
		t.Run("to "+to, func(t *testing.T) {
			q := newRoadstead(t)
			q.write(nil, fmt.Sprintf(`
apiVersion: fairlead.io/v1alpha1
kind: SocketAcceleration
metadata: {name: proxy, namespace: shop, uid: uid-policy}
spec: {%s, ports: [80]}
`, ends))
			q.says(rig.NewChild(t, q.cgroup, q.ns, "sayBack", "80"), "ready")
			q.start()
			q.takesPart(1)
			node := map[bool]netip.Addr{true: netip.MustParseAddr("10.9.0.1"), false: netip.MustParseAddr("fd09::1")}
			from, addrs, client, other := q.pods["a"].Netns, node, "shop/a", q.dial(q.pods["b"].Netns, node[true])
			if to == "shop/a" {
				from, addrs, client, other = q.ns, q.pods["a"].addr, "node", q.dial(q.ns, q.pods["b"].addr[true])
			}
			q.ask(other, 20)
			q.bypass([]*rig.Process{q.dial(from, addrs[true]), q.dial(from, addrs[false])}, client, to)
			q.ask(other, 20)
			if rows := q.list(); len(rows) != 2 {
				t.Errorf("pod b is among %+v", rows)
			}
		})
	}
}

// TestAccelerateOnlyAfterAnother checks that an accelerate-only agent refuses to start while a full
// agent's programs are still attached, because nothing would keep their maps up to date.
func TestAccelerateOnlyAfterAnother(t *testing.T) {
	rig.MapIterators(t)
	q := newRoadstead(t)
	const full = "--mode=full"
	args := append([]string{filepath.Join(command.in(t), "fairlead"), "agent", full, "--source=" + q.files, "--node-name=node-a", "--cgroup-root=" + q.cgroup.Path()}, q.flags...)
	first := rig.NewChild(t, nil, q.ns, "fairlead", args...)
	q.ready()
	first.Kill()
	q.start()
	done := make(chan error, 1)
	go func() { done <- q.agent.Wait() }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("it has ended, and says that all is well")
		}
	case <-time.After(patience):
		t.Fatalf("it runs\n%s", q.statusText())
	}
	q.run("cleanup")
	q.prove()
	q.start()
	q.ready()
}

// TestAccelerateAfterAnother checks that pods for which fairlead-cni runs after another plugin bypass
// TCP too, by IPv4 and IPv6, if they are selected by the agent's own configuration.
func TestAccelerateAfterAnother(t *testing.T) {
	rig.MapIterators(t)
	q := &oneNodeThreePods{oneNodeWithAgent: newOneNodeWithAgent(t, "--sockmap=true", "--pod-network=chained", "--accelerate-selector=app in (a, b)"), pods: map[string]*pod{}}
	rig.Bridge(t, q.ns, "br0")
	rig.Address(t, q.ns, "br0", "10.9.0.1/24", "fd09::1/64")
	q.configure("1.0.0", fmt.Sprintf(`{"type": %q, "notes": %q, "peer": "bridge"}`, fakeName, fakes(t, q.node)), entry)
	for _, name := range []string{"a", "b", "c"} {
		q.pods[name] = q.pod(name)
		q.mustAdd(q.pods[name])
		q.says(rig.NewChild(t, q.cgroup, q.pods[name].Netns, "sayBack", "80"), "ready")
	}
	q.write(nil, "")
	q.takesPart(2)
	a, addrs := q.pods["a"].Netns, q.pods["b"].addr
	q.ask(q.chat("c", "b"), 20)
	q.bypass([]*rig.Process{q.dial(a, addrs[true]), q.dial(a, addrs[false])}, "shop/a", "shop/b")
}
