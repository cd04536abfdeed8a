package podnet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// connection returns the listed connection of a client with this source port.
func (q *oneNodeThreePods) connection(client string) listed {
	q.t.Helper()
	rows := q.list()
	at := slices.IndexFunc(rows, func(r listed) bool { return r.ClientPod == client })
	if at < 0 {
		return listed{}
	}
	return rows[at]
}

// TestPoliciesOfAccelerated checks that a policy ends the acceleration of the connections of the pods that it
// is about: those that it accepts go on by TCP, and others are cut. They may bypass TCP again once it is gone.
func TestPoliciesOfAccelerated(t *testing.T) {
	rig.Root(t)
	q := &oneNodeThreePods{oneNodeWithAgent: newOneNodeWithAgent(t, "--policies=enforce", "--sockmap=true"), pods: map[string]*pod{}}
	annotations := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		q.pods[name] = q.pod(name)
		q.mustAdd(q.pods[name])
		q.says(rig.NewChild(t, q.cgroup, q.pods[name].Netns, "sayBack", "80"), "ready")
		annotations[name] = `fairlead.io/accelerate: "true"`
	}
	const onlyA = "\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: only-a, namespace: shop}\n" +
		"spec: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}\n---\n" + shopNamespace
	q.write(annotations, "\n"+shopNamespace)
	q.takesPart(3)
	ab, cb := q.chat("a", "b"), q.chat("c", "b")
	q.until("both bypass TCP", func() bool {
		q.ask(ab, 10)
		q.ask(cb, 10)
		a, c := q.connection("shop/a"), q.connection("shop/c")
		return a.State == "accelerated" && a.Redirected[1] > 0 && c.State == "accelerated" && c.Redirected[1] > 0
	})

	q.write(annotations, onlyA)
	q.until("the policy is in force", func() bool { return !q.connects("c", "b") })
	before := q.connection("shop/a")
	if before.State != "excluded" || before.Reason != "rules" {
		t.Errorf("the policy is in force, and the connection is %+v", before)
	}
	q.ask(ab, 100)
	if after := q.connection("shop/a"); after.Redirected != before.Redirected {
		t.Errorf("past TCP went %v bytes, and %v before the policy", after.Redirected, before.Redirected)
	}
	if _, err := fmt.Fprintln(cb.Stdin, 1); err != nil {
		t.Fatal(err)
	}
	if line, err := cb.ReadLine(); err != nil || !strings.Contains(line, "i/o timeout") {
		t.Errorf("a connection that the policy denies: %q, %v", line, err)
	}
	if text := q.statusText(); !strings.Contains(text, "1 pods that policies are about may not") {
		t.Error(text)
	}
	fresh := q.chat("a", "b")
	q.ask(fresh, 100)
	if rows := q.list(); slices.ContainsFunc(rows, func(r listed) bool { return r.ServerPod == "shop/b" && r.State != "excluded" }) {
		t.Errorf("connections of the pod: %+v", rows)
	}

	q.restart()
	q.ready()
	q.takesPart(2)
	q.ask(fresh, 100)
	if rows := q.list(); slices.ContainsFunc(rows, func(r listed) bool { return r.ServerPod == "shop/b" && r.State != "excluded" }) {
		t.Errorf("with the next agent, connections of the pod: %+v", rows)
	}

	q.write(annotations, "\n"+shopNamespace)
	q.takesPart(3)
	q.until("it bypasses TCP again without the policy", func() bool {
		q.ask(ab, 40)
		return slices.ContainsFunc(q.list(), func(r listed) bool {
			return r.ClientPod == "shop/a" && r.State == "accelerated" && r.Redirected[0] > before.Redirected[0]
		})
	})
}

// connects reports whether a pod can open a connection to another one.
func (q *oneNodeThreePods) connects(from, to string) bool {
	q.t.Helper()
	return q.knock(q.pods[from], fmt.Sprintf("%s/tcp/%s:80", silence, q.pods[to].addr[true])) != "nothing"
}
