package podnet

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// enforcerQueue is the number of the queue from which kube-network-policies takes packets.
const enforcerQueue = "100"

// enforcer is kube-network-policies on a node, built from the upstream module.
type enforcer struct{ *node }

// newEnforcer starts kube-network-policies with the objects of the server, and waits until it takes
// packets.
func newEnforcer(t *testing.T, n *node, name string, objects *objectServer) enforcer {
	t.Helper()
	var at net.Listener
	n.must(n.ns.Do(func() (err error) {
		at, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	web := httptest.NewUnstartedServer(objects)
	web.Listener.Close()
	web.Listener = at
	web.StartTLS()
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	ca := filepath.Join(t.TempDir(), "ca.crt")
	n.must(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o600))
	path := filepath.Join(policies.in(t), policies.name)
	child := rig.NewChild(t, nil, n.ns, "enforce", at.Addr().String(), ca, path,
		"--hostname-override="+name, "--nfqueue-id="+enforcerQueue, "--metrics-bind-address=127.0.0.1:9080")
	t.Cleanup(func() {
		if t.Failed() {
			child.Kill()
			t.Logf("kube-network-policies on %s: %v", name, child.Wait())
		}
	})
	e := enforcer{n}
	n.until("kube-network-policies on "+name+" looks at packets", e.listens)
	return e
}

// enforce becomes kube-network-policies. It talks to the API server as a pod does, by files below
// /var. It has a /var of its own, so that it finds nothing else of the machine there, such as the
// socket of a container runtime.
func enforce(args []string) int {
	runtime.LockOSThread()
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	host, port, err := net.SplitHostPort(args[0])
	var ca []byte
	for _, step := range []func() error{
		func() error { return err },
		func() (err error) { ca, err = os.ReadFile(args[1]); return err },
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("tmpfs", "/var", "tmpfs", 0, "mode=0755") },
		func() error { return os.MkdirAll(account, 0o755) },
		func() error { return os.WriteFile(account+"/token", []byte("anybody"), 0o600) },
		func() error { return os.WriteFile(account+"/ca.crt", ca, 0o644) },
		func() error {
			return unix.Exec(args[2], args[2:], append(os.Environ(), "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port))
		},
	} {
		if err := step(); err != nil {
			fmt.Fprintln(os.Stderr, "become kube-network-policies:", err)
			return 1
		}
	}
	return 1 // not reached: Exec returns only errors
}

// untilChecks waits until the packets of these addresses are checked, or no more. With every change of policies,
// kube-network-policies replaces all of its nftables, and when the kernel removes the old chains it drops every packet of
// the namespace that still waits for a verdict (nf_queue_nf_hook_drop). The new sets are visible before that, so it is
// over only when the kernel is ready for the next change.
func (e enforcer) untilChecks(addrs map[bool]netip.Addr, want bool) {
	e.t.Helper()
	e.until(fmt.Sprintf("packets of %v are checked: %t", addrs, want), func() bool { return e.checks(addrs) == want })
	e.must(e.ns.Do(func() error { return nftChange() }))
}

// listens reports whether a process takes packets from the queue.
func (e enforcer) listens() bool { return len(e.queue()) > 0 }

// holds returns how many packets wait for a verdict.
func (e enforcer) holds() int {
	e.t.Helper()
	fields := e.queue()
	if len(fields) < 3 {
		e.t.Fatalf("kube-network-policies has no queue: %q", fields)
	}
	held, err := strconv.Atoi(fields[2])
	e.must(err)
	return held
}

// queue returns what the kernel says of the queue: its number, who takes packets from it, how many wait, and more; nothing
// if nobody takes any.
func (e enforcer) queue() (fields []string) {
	e.t.Helper()
	e.must(e.ns.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); f[0] == enforcerQueue {
				fields = f
			}
		}
		return err
	}))
	return fields
}

// checks reports whether the packets of these addresses are checked.
func (e enforcer) checks(addrs map[bool]netip.Addr) bool {
	e.t.Helper()
	for is4, set := range map[bool]string{true: "podips-v4", false: "podips-v6"} {
		held := false
		e.must(e.ns.Do(func() (err error) {
			held, err = setHolds("kube-network-policies", set, addrs[is4])
			return err
		}))
		if !held {
			return false
		}
	}
	return true
}

// counts returns how many packets kube-network-policies has accepted and dropped.
func (e enforcer) counts() (accepted, dropped int) {
	e.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, at string) (conn net.Conn, err error) {
		err = e.ns.Do(func() error {
			conn, err = net.Dial(network, at)
			return err
		})
		return conn, err
	}}}
	response, err := client.Get("http://127.0.0.1:9080/metrics")
	e.must(err)
	defer response.Body.Close()
	row := regexp.MustCompile(`^kube_network_policies_packet_count\{.*verdict="(\w+)"\} (\S+)$`)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if m := row.FindStringSubmatch(lines.Text()); m != nil {
			count, err := strconv.Atoi(m[2])
			e.must(err)
			if m[1] == "accept" {
				accepted += count
			} else {
				dropped += count
			}
		}
	}
	e.must(lines.Err())
	return accepted, dropped
}
