package upkeep

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestAcceleration installs agents that let connections go past TCP and do nothing else, beside kube-proxy and the bridge plugin, on a cluster whose
// pods ask each other already. They have only the rights that the chart gives them then.
func TestAcceleration(t *testing.T) {
	dir := t.TempDir()
	f := newFixture(t, "-family", *family, "-cni", "bridge", "-proxy", "nftables")
	f.bridged = true
	f.makeImage(dir)
	f.apply(workload)
	f.mustAsk("rollout", "status", "daemonset/echo", waitFlag)
	f.mustAsk("wait", "--for=condition=Ready", "pod/client", waitFlag)
	f.mustAsk("annotate", "pods", "--selector=app=echo", "fairlead.io/accelerate=true")
	f.mustAsk("annotate", "pod", "client", "fairlead.io/accelerate=true")
	before := f.snapshots()
	requests := f.startSources()
	requests = append(requests, f.newSource("pod", f.podPlace("node1", "client"), []target{{"a pod of the same node", "tcp", f.echoOn("node1") + ":8080"}}))
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
		f.install(dir, "-set", "mode=accelerate-only")
		f.awaitPastTCP("node1")
	})
	run("upgrade", func() {
		f.helm("upgrade", "--namespace=kube-system", "--reuse-values", "--set=sockmap.selector=app=nothing", "fairlead", "charts/fairlead")
		f.agents()
		f.awaitPastTCP("node1")
	})
	run("uninstall", func() {
		f.helm("upgrade", "--namespace=kube-system", "--reuse-values", "--set=cleanup=true", "--wait", "--wait-for-jobs", "--timeout=3m", "fairlead", "charts/fairlead")
		f.helm("uninstall", "--namespace=kube-system", "--wait", "fairlead")
	})
	f.requireAsBefore(before)
}

// echoOn returns the address of the pod of a node that answers.
func (f *fixture) echoOn(node string) string {
	f.t.Helper()
	return f.mustAsk("get", "pods", "--selector=app=echo", "--field-selector=spec.nodeName="+node, "--output=jsonpath={.items[0].status.podIP}")
}

// awaitPastTCP waits until the pods of a node that converse do it past TCP, and more and more of it, by what its agent says.
func (f *fixture) awaitPastTCP(node string) {
	f.t.Helper()
	agent := f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=app.kubernetes.io/name=fairlead", "--field-selector=spec.nodeName="+node,
		"--output=jsonpath={.items[0].metadata.name}")
	fairlead := func(args ...string) (string, error) {
		return f.ask(append([]string{"--namespace=kube-system", "exec", agent, "--container=agent", "--", "/fairlead"}, args...)...)
	}
	var most uint64
	for range 2 { // the second time more
		least := most
		f.await("the pods of "+node+" speak past TCP", func() error {
			text, err := fairlead("sockmap", "list", "--output=json")
			if err != nil {
				return err
			}
			var rows []struct {
				ClientPod, ServerPod, State string
				Redirected                  [2]uint64
			}
			if err := json.Unmarshal([]byte(text), &rows); err != nil {
				return err
			}
			for _, r := range rows {
				if r.State == "short" && r.ClientPod == "default/client" && strings.HasPrefix(r.ServerPod, "default/echo-") && min(r.Redirected[0], r.Redirected[1]) > least {
					most = min(r.Redirected[0], r.Redirected[1])
					return nil
				}
			}
			return fmt.Errorf("%s", text)
		})
	}
	if text, err := fairlead("status"); err != nil || !strings.Contains(text, "2 pods may take part") {
		f.t.Errorf("the status is %s, %v", text, err)
	}
}
