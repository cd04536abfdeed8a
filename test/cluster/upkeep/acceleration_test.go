package upkeep

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// TestAcceleration installs agents that only let connections bypass TCP, beside kube-proxy and the
// bridge plugin, on a cluster whose pods already send each other requests. The agents have only the
// rights that the chart grants in this mode.
func TestAcceleration(t *testing.T) {
	rig.MapIterators(t)
	const metricsPort = "19249" // kube-proxy has the usual one
	dir := t.TempDir()
	f := newFixture(t, "-family", *family, "-cni", "bridge", "-proxy", "nftables")
	f.bridged = true
	f.makeImage(dir, "")
	f.apply(workload)
	f.mustAsk("rollout", "status", "daemonset/echo", waitFlag)
	f.mustAsk("wait", "--for=condition=Ready", "pod/client", waitFlag)
	before := f.snapshots()
	requests := f.startSources()
	requests = append(requests, f.newSource("pod", f.podPlace("node1", "client"), []target{
		{"a pod, the same without kube-proxy", "tcp", net.JoinHostPort(f.mustAsk("get", "pod", "stays", "--output=jsonpath={.status.podIP}"), "8080")},
	}))
	run := func(name string, fn func()) {
		t.Helper()
		t.Log(name)
		fn()
		requests.check(f)
		if t.Failed() {
			t.FailNow()
		}
	}
	run("nothing", func() {})
	run("install", func() {
		f.install(dir, "-set", "mode=accelerate-only", "-set", "metrics.address=:"+metricsPort)
		f.awaitPastTCP(1 + len(f.Family.Services()))
	})
	run("upgrade", func() {
		f.helm("upgrade", "--namespace=kube-system", "--reuse-values", "--set=sockmap.selector=app=nothing", "fairlead", "charts/fairlead")
		f.agents()
		f.awaitPastTCP(1 + len(f.Family.Services()))
	})
	run("Prometheus", func() { f.seen(pastTCP.MatchString, 12) })
	run("uninstall", func() {
		f.helm("upgrade", "--namespace=kube-system", "--reuse-values", "--set=cleanup=true", "--wait", "--wait-for-jobs", "--timeout=3m", "fairlead", "charts/fairlead")
		f.helm("uninstall", "--namespace=kube-system", "--wait", "fairlead")
	})
	f.requireAsBefore(before)
}

// awaitPastTCP waits until the agent of node1 reports that as many connections as there should be
// bypass TCP which the client there keeps open to the pod that stays, and twice that their bytes past
// it grow.
func (f *fixture) awaitPastTCP(want int) {
	f.t.Helper()
	agent := f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=app.kubernetes.io/name=fairlead", "--field-selector=spec.nodeName=node1",
		"--output=jsonpath={.items[0].metadata.name}")
	fairlead := func(args ...string) (string, error) {
		return f.ask(append([]string{"--namespace=kube-system", "exec", agent, "--container=agent", "--", "/fairlead"}, args...)...)
	}
	before := map[string]uint64{}
	for range 2 { // the second time, the counts must have grown
		now := map[string]uint64{}
		f.await(fmt.Sprintf("%d connections bypass TCP", want), func() error {
			text, err := fairlead("sockmap", "list", "--output=json")
			if err != nil {
				return err
			}
			if now, err = conversations(text); err != nil {
				return err
			}
			maps.DeleteFunc(now, func(client string, bytes uint64) bool { return bytes <= before[client] })
			if len(now) < want {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
		before = now
	}
	if text, err := fairlead("status"); err != nil || !strings.Contains(text, "2 pods may take part") {
		f.t.Errorf("status: %s, %v", text, err)
	}
}

// conversations returns how many bytes the client and the pod that stays have exchanged past TCP, the
// smaller number of the two directions, by the client's end of each connection.
func conversations(text string) (map[string]uint64, error) {
	var rows []struct {
		Client, ClientPod, ServerPod, State string
		Redirected                          [2]uint64
	}
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	found := map[string]uint64{}
	for _, r := range rows {
		if r.State == "accelerated" && r.ClientPod == "default/client" && r.ServerPod == "default/stays" {
			found[r.Client] = min(r.Redirected[0], r.Redirected[1])
		}
	}
	return found, nil
}
