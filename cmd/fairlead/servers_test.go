package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// The addresses are fixed, because the agent of the test has a namespace to itself.
const (
	metricsAddress = "127.0.0.1:10249"
	healthzAddress = "127.0.0.1:10256"
	readyAddress   = "127.0.0.1:10247"
)

// startServing starts an agent in the node's namespace that listens at these addresses, and does
// not wait for it.
func (n *node) startServing() {
	n.t.Helper()
	n.startServingIn(nil)
}

// startServingIn does the same in a cgroup.
func (n *node) startServingIn(cgroup *rig.Cgroup) {
	n.t.Helper()
	n.agent = rig.NewChild(n.t, cgroup, n.ns, "fairlead", append([]string{
		"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=error",
		"--metrics-address=" + metricsAddress, "--healthz-address=" + healthzAddress, "--ready-address=" + readyAddress,
	}, n.flags...)...)
}

// get sends a request in the node's namespace, and returns the code and the body, or 0 if nobody
// listens.
func (n *node) get(address, path string) (code int, body string) {
	n.t.Helper()
	err := n.ns.Do(func() error {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			body = err.Error()
			return nil
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		code, body = response.StatusCode, string(text)
		return err
	})
	if err != nil {
		n.t.Fatalf("get http://%s%s: %v", address, path, err)
	}
	return code, body
}

func (n *node) wantAnswer(address, path string, code int, words ...string) {
	n.t.Helper()
	have, body := n.get(address, path)
	if have != code {
		n.t.Errorf("http://%s%s answers %d, want %d: %.300s", address, path, have, code, body)
	}
	for _, word := range words {
		if !strings.Contains(body, word) {
			n.t.Errorf("http://%s%s does not say %q: %.3000s", address, path, word, body)
		}
	}
}

func TestAgentAnswers(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1", "198.18.0.2")
	n.startServing()
	n.run("status", "--wait", "--wait-duration=30s")
	n.wantAnswer(healthzAddress, "/healthz", 200, `"lastUpdated":"20`, `"currentTime":"20`, `"nodeEligible":true`, `"healthy":true`)
	n.wantAnswer(healthzAddress, "/livez", 200, `"lastUpdated":"20`, `"healthy":true`)
	n.wantAnswer(metricsAddress, "/proxyMode", 200, "fairlead")
	n.wantAnswer(readyAddress, "/livez", 200, `"healthy":true`)
	n.wantAnswer(readyAddress, "/readyz?verbose", 200,
		"[+]source-synced ok\n[+]maps-written ok\n[+]programs-attached ok\n[+]programs-at-work ok\nreadyz check passed\n")
	n.wantAnswer(metricsAddress, "/debug/pprof/", 404)
	n.wantAnswer(healthzAddress, "/metrics", 404)

	n.wantAnswer(metricsAddress, "/metrics", 200, "\nfairlead_degraded 0\n", "\nfairlead_services 1\n", "\nfairlead_backends 2\n",
		`fairlead_program_attached{program="sock_connect4"} 1`, `fairlead_source_synced{kind="files"} 1`,
		`fairlead_map_entries{map="svcs"} 1`, `fairlead_map_max_entries{map="affinity"}`, `fairlead_map_memory_bytes{map="sock_origins"}`,
		`fairlead_datapath_packets_total{hook="sock",reason="no-backend"} 0`, `fairlead_reconcile_duration_seconds_count`,
		`fairlead_health_answers_total{code="200",path="/healthz"} 1`, `kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`)

	n.service()
	n.waitFor("a refusal is counted", func() bool {
		n.connect(1)
		_, text := n.get(metricsAddress, "/metrics")
		return !strings.Contains(text, `fairlead_datapath_packets_total{hook="sock",reason="no-backend"} 0`)
	})

	n.write("node.yaml", `
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}
`)
	n.waitFor("the node is not eligible", func() bool { code, _ := n.get(healthzAddress, "/healthz"); return code == 503 })
	n.wantAnswer(healthzAddress, "/healthz", 503, `"nodeEligible":false`, `"healthy":true`)
	n.wantAnswer(healthzAddress, "/livez", 200)
}

// TestAgentWorksWithoutItsPort checks that if a kube-proxy uses the port, the agent cannot answer
// there, but everything else works.
func TestAgentWorksWithoutItsPort(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1")
	var other net.Listener
	if err := n.ns.Do(func() (err error) { other, err = net.Listen("tcp", healthzAddress); return err }); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	n.startServing()
	var said string
	n.waitFor("the agent says what is wrong", func() bool {
		out, err := rig.RunChild(nil, nil, "fairlead", append([]string{"status"}, n.flags...)...)
		said = out
		var exit *exec.ExitError
		return errors.As(err, &exit) && exit.ExitCode() == exitDegraded && strings.Contains(out, "--healthz-address")
	})
	for _, word := range []string{healthzAddress, "address already in use", "kube-proxy"} {
		if !strings.Contains(said, word) {
			t.Errorf("status does not say %q: %s", word, said)
		}
	}
	n.waitFor("connections are carried", func() bool { return n.connect(1)["198.18.0.1"] == 1 })
	n.wantAnswer(metricsAddress, "/metrics", 200, "\nfairlead_degraded 1\n")
	other.Close()
	n.run("status", "--wait", "--wait-duration=30s")
	n.wantAnswer(healthzAddress, "/healthz", 200)
}
