package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/test/rig"
)

// explainIn explains a connection from an address to vip, in a namespace and a cgroup.
func (n *node) explainIn(cgroup *rig.Cgroup, ns *rig.Netns, from netip.Addr, args ...string) explain.Explanation {
	n.t.Helper()
	args = slices.Concat([]string{"explain", from.String(), vip, "-o", "json"}, args, n.flags)
	out, err := rig.RunChild(cgroup, ns, "fairlead", args...)
	if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	var e explain.Explanation
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		n.t.Fatalf("%v in %s", err, out)
	}
	return e
}

// serve replaces the Service at vip by one with eight backends, an algorithm, and perhaps more in
// its spec.
func (n *node) serve(algorithm, spec string) {
	n.t.Helper()
	var backends strings.Builder
	for i := range 8 {
		fmt.Fprintf(&backends, "- {addresses: [198.18.0.%d]}\n", i+1)
	}
	n.write("web.yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {fairlead.io/algorithm: %s}}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80}]%s}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
%s`, algorithm, spec, backends.String()))
}

// TestExplainIsWhatHappens compares explanations with where the programs point the sockets of
// several pods.
func TestExplainIsWhatHappens(t *testing.T) {
	n := newNode(t)
	n.serve("source-hash", "")
	n.start()
	type pod struct {
		ns   *rig.Netns
		addr netip.Addr
	}
	var pods []pod
	for i := range 4 {
		p := pod{rig.NewNetns(t, fmt.Sprint("pod-", i)), netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)})}
		rig.Address(t, p.ns, "lo", p.addr.String()+"/32")
		rig.Address(t, p.ns, "lo", "198.18.0.254/24") // a route to the backends
		pods = append(pods, p)
	}
	goesTo := func(e explain.Explanation) string {
		if len(e.Probes) != 1 || e.Next == nil || len(e.Notes) > 0 {
			t.Fatalf("probes went to %v, expected %v; %q", e.Probes, e.Next, e.Notes)
		}
		if e.Probes[0].Address != *e.Next {
			t.Errorf("%s: %s (%s) goes to %s, but was explained as %s", e.Client, e.Algorithm,
				e.Affinity, e.Probes[0].Address, e.Next)
		}
		return e.Probes[0].Address.String()
	}
	for _, p := range pods {
		goesTo(n.explainIn(n.cgroup, p.ns, p.addr, "--probe", "3"))
	}

	n.serve("round-robin", "")
	n.waitFor("it takes turns", func() bool { return n.explainIn(n.cgroup, pods[0].ns, pods[0].addr).Algorithm == "round-robin" })
	seen := map[string]bool{}
	for i := range 8 {
		seen[goesTo(n.explainIn(n.cgroup, pods[i%4].ns, pods[i%4].addr, "--probe", "1"))] = true
	}
	if len(seen) != 8 {
		t.Errorf("8 turns reached %v", seen)
	}

	n.serve("random", ", sessionAffinity: ClientIP")
	n.waitFor("it has affinity", func() bool {
		return strings.Contains(n.explainIn(n.cgroup, pods[0].ns, pods[0].addr).Affinity, "no backend yet")
	})
	for _, p := range pods {
		n.explainIn(n.cgroup, p.ns, p.addr, "--probe", "1")
		goesTo(n.explainIn(n.cgroup, p.ns, p.addr, "--probe", "5"))
	}

	n.serve("random", "")
	n.waitFor("it has no affinity", func() bool { return n.explainIn(n.cgroup, pods[0].ns, pods[0].addr).Affinity == "none" })
	n.serve("random", ", sessionAffinity: ClientIP")
	n.waitFor("it has affinity and nobody is remembered", func() bool {
		return strings.Contains(n.explainIn(n.cgroup, pods[0].ns, pods[0].addr).Affinity, "no backend yet")
	})
}

func TestProbe(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1", "198.18.0.2")
	n.start()
	addr := netip.MustParseAddr("10.1.0.1")
	rig.Address(t, n.ns, "lo", addr.String()+"/32")
	opened := n.passiveOpens()
	e := n.explainIn(n.cgroup, n.ns, addr, "--probe", "100")
	if len(e.Probes) != 2 || e.Probes[0].Count+e.Probes[1].Count != 100 || len(e.Notes) > 0 {
		t.Errorf("100 probes: %+v, %q", e.Probes, e.Notes)
	}
	if got := n.passiveOpens(); got != opened {
		t.Errorf("the probes reached their backends: %q, then %q", opened, got)
	}
	e = n.explainIn(nil, n.ns, addr, "--probe", "1")
	if len(e.Probes) != 1 || e.Probes[0].Error != "network is unreachable" || len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "no route") {
		t.Errorf("outside of the cgroup, without a route: %+v, %q", e.Probes, e.Notes)
	}
	rig.Address(t, n.ns, "lo", "10.96.0.1/16")
	e = n.explainIn(nil, n.ns, addr, "--probe", "1")
	if len(e.Probes) != 1 || e.Probes[0].Address.String() != vip || len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "not pointed at a backend") {
		t.Errorf("outside of the cgroup: %+v, %q", e.Probes, e.Notes)
	}
	e = n.explainIn(n.cgroup, n.ns, netip.MustParseAddr("10.1.0.2"), "--probe", "1")
	if len(e.Probes) != 0 || len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "No probe was made") {
		t.Errorf("for another pod: %+v, %q", e.Probes, e.Notes)
	}
	n.service()
	n.waitFor("it refuses", func() bool { return n.explainIn(n.cgroup, n.ns, addr).Outcome == explain.Refused })
	e = n.explainIn(n.cgroup, n.ns, addr, "--probe", "2")
	if len(e.Probes) != 1 || e.Probes[0].Error != "connection refused" || e.Probes[0].Count != 2 || len(e.Notes) > 0 {
		t.Errorf("without backends: %+v, %q", e.Probes, e.Notes)
	}
}

// passiveOpens returns how many connections sockets of the node's namespace have accepted, as the
// kernel prints it.
func (n *node) passiveOpens() (count string) {
	n.t.Helper()
	err := n.ns.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		for line := range bytes.Lines(text) {
			if words := strings.Fields(string(line)); words[0] == "Tcp:" {
				count = words[6]
			}
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return count
}
