package podnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// describe writes a pod's Pod object with its addresses, as its kubelet reports them.
func (h *oneNodeWithAgent) describe(p *pod) {
	h.t.Helper()
	text := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop, uid: uid-%[1]s}
spec: {nodeName: node-a, containers: [{name: c, image: i, ports: [{hostPort: 8080, containerPort: 7, protocol: TCP}]}]}
status: {podIP: %[2]s, podIPs: [{ip: %[2]s}, {ip: "%[3]s"}]}
`, p.id, p.addr[true], p.addr[false])
	path := filepath.Join(h.files, p.id+".yaml")
	h.must(os.WriteFile(path+".tmp", []byte(text), 0o644))
	h.must(os.Rename(path+".tmp", path))
}

// tear truncates the files of a directory of records to half their size.
func tear(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		content, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, content[:len(content)/2], 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestRecordsLost checks that a pod whose records are lost still has its source addresses checked,
// keeps its host ports as its Pod lists them, and is named by status together with what to do,
// until the runtime asks about it.
func TestRecordsLost(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lose  func(dir string) error
		named bool
	}{
		{"all", os.RemoveAll, true},
		{"that of the pod", func(dir string) error { return tear(filepath.Join(dir, "pods")) }, true},
		{"those of addresses", func(dir string) error { return tear(filepath.Join(dir, "ipam")) }, false},
		{"one of two addresses", func(dir string) error {
			names, err := filepath.Glob(filepath.Join(dir, "ipam", "10.*"))
			if err != nil || len(names) != 1 {
				return fmt.Errorf("there is %q, %v", names, err)
			}
			return os.Remove(names[0])
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			h := newOneNodeWithAgent(t)
			p := h.harbored("a", mapping("", 8080, "TCP"))
			h.mustAdd(p)
			h.describe(p)
			h.borrow(p)
			works := func(when string) {
				t.Helper()
				h.reach(when, reach{h.outside, nil, "tcp", "198.51.100.1:8080", "198.51.100.7"},
					reach{h.outside, nil, "tcp", "[2001:db8:1::1]:8080", "2001:db8:1::7"})
				before := h.dropped()
				h.spoofs(p)
				if after := h.dropped(); after < before+uint64(len(borrowed)) {
					t.Errorf("%s: %d of %d spoofed packets are dropped", when, after-before, len(borrowed))
				}
			}
			// A host port that the runtime asks for is open when ADD returns; one that only the Pod
			// lists, once the agent has seen the Pod.
			settled := func(named bool) {
				t.Helper()
				h.ready()
				h.until("the host port is served", func() bool { return strings.Contains(h.run("service", "list"), "pod:shop/a:0.0.0.0:8080/tcp") })
				h.until("what is lost is named", func() bool {
					text := h.run("status")
					return strings.Contains(text, "1 pods whose records were lost") == named && strings.Contains(text, "in their Pods: shop/a") == named &&
						strings.Contains(text, "PodRecordLost") == named
				})
			}
			works("before")
			h.kill()
			h.must(tt.lose(h.Dir))
			h.start()
			settled(tt.named)
			works("with the files lost")
			h.must(h.check(p))
			settled(false)
			works("after CHECK")
			h.restart()
			settled(false)
			works("with the next agent")
			other := h.pod("b")
			h.mustAdd(other)
			if other.addr[true] == p.addr[true] || other.addr[false] == p.addr[false] {
				t.Errorf("both pods have %v", p.addr)
			}
			h.must(os.Remove(filepath.Join(h.files, p.id+".yaml")))
			h.must(h.collect(other)) // the runtime names no other pod, so this one goes
			h.until("the host port is closed", func() bool { return !strings.Contains(h.run("service", "list"), "pod:shop/a:") })
			if left := strings.Join(h.left(), " "); strings.Contains(left, p.device()) {
				t.Errorf("of the pod there is left %s", left)
			}
		})
	}
}

// TestRecordsAndNeighborsLost checks that a pod without records and neighbor entries is named as
// one whose source addresses are not checked, until the runtime asks about it.
func TestRecordsAndNeighborsLost(t *testing.T) {
	t.Parallel() // it mostly waits
	h := newOneNodeWithAgent(t)
	p := h.harbored("a", mapping("", 8080, "TCP"))
	h.mustAdd(p)
	h.borrow(p)
	h.kill()
	h.must(os.RemoveAll(h.Dir))
	h.must(h.ns.Do(func() error {
		list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for i := range list {
			if list[i].State&unix.NUD_PERMANENT != 0 {
				err = errors.Join(err, netlink.NeighDel(&list[i]))
			}
		}
		return err
	}))
	h.start()
	status := func() string {
		args := append([]string{filepath.Join(command.in(t), "fairlead"), "status"}, h.flags...)
		text, _ := rig.RunChild(nil, h.ns, "fairlead", args...) // it fails if the node is degraded
		return text
	}
	h.until("the pod is named", func() bool {
		return strings.Contains(status(), "Delete the pods, so that they are recreated: shop/a")
	})
	h.must(h.check(p))
	h.ready()
	before := h.dropped()
	h.spoofs(p)
	if after := h.dropped(); after < before+uint64(len(borrowed)) {
		t.Errorf("%d of %d spoofed packets are dropped", after-before, len(borrowed))
	}
	h.until("the host port is served", func() bool { return strings.Contains(h.run("service", "list"), "pod:shop/a:0.0.0.0:8080/tcp") })
	h.reach("after CHECK", reach{h.outside, nil, "tcp", "198.51.100.1:8080", "198.51.100.7"})
}

// TestRecordsLostAddAgain checks that ADD of a pod that was adopted without its records gives it
// what it had.
func TestRecordsLostAddAgain(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	p := n.pod("a")
	n.mustAdd(p)
	was := p.addr
	before := n.left()
	n.kill()
	n.must(os.RemoveAll(n.Dir))
	n.start()
	n.mustAdd(p)
	if fmt.Sprint(was) != fmt.Sprint(p.addr) || fmt.Sprint(before) != fmt.Sprint(n.left()) {
		t.Errorf("it has %v of %q, had %v of %q", p.addr, n.left(), was, before)
	}
	n.must(n.check(p))
	n.must(n.del(p))
	n.nothingLeft()
}

// TestRecordsComeBack checks that files that are removed while the agent runs come back, and that
// no record is lost then.
func TestRecordsComeBack(t *testing.T) {
	t.Parallel() // it mostly waits
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	p := n.pod("a")
	n.mustAdd(p)
	before := n.left()
	content := func() string {
		var all strings.Builder
		for _, name := range []string{"pods/" + p.device(), "ipam/" + p.addr[true].String(), "ipam/" + p.addr[false].String()} {
			text, err := os.ReadFile(filepath.Join(n.Dir, name))
			if err != nil {
				return ""
			}
			all.Write(text)
		}
		return all.String()
	}
	was := content()
	for _, lose := range [][]string{{"pods/" + p.device(), "ipam/" + p.addr[true].String()}, {"ipam"}, {"pods"}} {
		for _, name := range lose {
			n.must(os.RemoveAll(filepath.Join(n.Dir, name)))
		}
		n.until("the files are back", func() bool { return content() == was })
	}
	n.restart()
	if fmt.Sprint(before) != fmt.Sprint(n.left()) || content() != was {
		t.Errorf("there is %q, was %q", n.left(), before)
	}
	n.must(n.check(p))
	n.must(n.del(p))
	n.nothingLeft()
}
