package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

const (
	podUID  = "0f3a5b7c-1b0e-4b64-8c54-0d5f4f2b1a10"
	podAddr = "10.1.0.9"
)

// pod writes the manifest of a pod with the annotation, unless it is empty, and with more in its
// spec.
func (n *node) pod(socketLB, spec string) {
	n.t.Helper()
	n.write("pod.yaml", fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, uid: %s, annotations: {fairlead.io/socket-lb: %q}}
spec: {nodeName: node-a, containers: [{name: app, image: app}]%s}
status: {phase: Running, podIP: %s}
`, podUID, socketLB, spec, podAddr))
}

// untouched makes something answer at the address of the Service itself.
func (n *node) untouched() {
	n.t.Helper()
	at := netip.MustParseAddrPort(vip)
	rig.Address(n.t, n.ns, "lo", at.Addr().String()+"/32")
	if err := n.ns.Do(func() error {
		l, err := net.Listen("tcp", vip)
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, "untouched")
				conn.Close()
			}
		}()
		return nil
	}); err != nil {
		n.t.Fatal(err)
	}
}

// in returns what answers a process in a cgroup.
func (n *node) in(cgroup *rig.Cgroup) string {
	n.t.Helper()
	answer, _, _ := strings.Cut(rig.Child(n.t, cgroup, n.ns, "connect", vip, "1"), "=")
	return answer
}

// soon waits until want answers the process in the cgroup, and checks that this took at most a
// second. The time of the last request, which starts a process, does not count.
func (n *node) soon(what string, cgroup *rig.Cgroup, want string) {
	n.t.Helper()
	watch := rig.NewStopwatch(n.t)
	var took time.Duration
	n.waitFor(what, func() bool { took = watch.Took(); return n.in(cgroup) == want })
	if took > time.Second {
		n.t.Errorf("%s after %s", what, took)
	}
}

// TestOptOut lets a running pod opt out and in again, by its annotation, its namespace's and a
// rule, and restarts nothing.
func TestOptOut(t *testing.T) {
	n := newNode(t)
	n.untouched()
	n.service("198.18.0.1")
	container := rig.NewCgroupIn(t, rig.NewCgroupIn(t, rig.NewCgroupIn(t, n.cgroup, "kubepods"), "pod"+podUID), "app")
	rig.NewChild(t, container, n.ns, "hold")
	n.pod("on", "")
	n.start()
	if got := n.in(container); got != "198.18.0.1" {
		t.Fatalf("at first %s answers", got)
	}
	n.pod("off", "")
	n.soon("the pod opts out", container, "untouched")
	if got := n.in(n.cgroup); got != "198.18.0.1" {
		t.Errorf("another process is answered by %s", got)
	}
	n.checkWords(t)

	n.agent.Kill()
	if got := n.in(container); got != "untouched" {
		t.Errorf("with the agent dead %s answers", got)
	}
	n.pod("on", "")
	n.start()
	n.soon("it opted in while the agent was dead", container, "198.18.0.1")

	n.write("namespace.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: {fairlead.io/socket-lb: \"off\"}}}")
	n.pod("maybe", "")
	n.soon("its namespace opts out, and its own annotation is invalid", container, "untouched")
	if got := n.run("status"); !strings.Contains(got, `pod:shop/web-0: InvalidSocketLB: annotation fairlead.io/socket-lb "maybe"`) {
		t.Errorf("status: %s", got)
	}
	if err := os.Remove(filepath.Join(n.manifests, "namespace.yaml")); err != nil {
		t.Fatal(err)
	}
	n.soon("the namespace has gone", container, "198.18.0.1")
	n.pod("?", ", runtimeClassName: kata-qemu")
	n.soon("the pod is sandboxed", container, "untouched")
	if err := os.Remove(filepath.Join(n.manifests, "pod.yaml")); err != nil {
		t.Fatal(err)
	}
	n.soon("the pod has gone", container, "198.18.0.1")
}

// checkWords checks what the commands say about the pod that has opted out.
func (n *node) checkWords(t *testing.T) {
	t.Helper()
	if got := n.run("status"); !strings.Contains(got, "opted out  1 pods\n") {
		t.Errorf("status: %s", got)
	}
	if got := n.run("map", "dump", "optout"); !strings.Contains(got, "shop/web-0  "+podAddr+"   annotation of the pod") {
		t.Errorf("map dump optout: %s", got)
	}
	e := n.explainIn(nil, nil, netip.MustParseAddr(podAddr))
	if e.Outcome != explain.LeftAlone || !strings.Contains(e.Reason, "shop/web-0 has opted out of socket balancing (annotation of the pod)") {
		t.Errorf("explain: %s, %s", e.Outcome, e.Reason)
	}
	m, err := maps.Open(datapath.MapsDir(n.bpffs), false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.SetOptouts(nil, true); err != nil {
		t.Fatal(err)
	}
	out, err := rig.RunChild(nil, nil, "fairlead", append([]string{"verify"}, n.flags...)...)
	if err == nil || !strings.Contains(out, "optout  cgroup ") {
		t.Errorf("without its row, verify: %v, %s", err, out)
	}
	if got := n.run("verify", "--repair"); !strings.Contains(got, "1 differences, 1 mended") {
		t.Errorf("verify --repair: %s", got)
	}
	if rows, err := maps.OptoutRows(m.Optout); err != nil || len(rows) != 1 {
		t.Errorf("after the repair: %v, %v", rows, err)
	}
}

// TestOptOutNotCovered has a pod that cannot be told from others, and checks that the status says
// so and why.
func TestOptOutNotCovered(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1")
	n.pod("off", ", hostNetwork: true")
	n.start()
	got := n.run("status")
	for _, part := range []string{
		"opted out  0 pods, 1 not covered\n", "shop/web-0 (annotation of the pod): not covered by network namespace: it is in the node's own; " +
			"not covered by cgroup: no kubepods below " + n.cgroup.Path(),
	} {
		if !strings.Contains(got, part) {
			t.Errorf("status has no %q:\n%s", part, got)
		}
	}
}
