package upkeep

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/cluster/place"
)

//go:embed migration.yaml
var migration string

// TestMigration installs the agent on a working cluster with the bridge plugin and kube-proxy, and
// then removes kube-proxy, as docs/migration.md describes. The plugin's pods are not restarted.
func TestMigration(t *testing.T) {
	// The chart's default, and what leaves the routes as they are.
	t.Run("vxlan", func(t *testing.T) { migrate(t, "vxlan", "iptables") })
	t.Run("native", func(t *testing.T) { migrate(t, "native", "nftables") })
}

// migrate tests the migration to agents with a routing, from a kube-proxy with a mode.
func migrate(t *testing.T, routing, mode string) {
	dir := t.TempDir()
	f := newFixture(t, "-family", "ipv4", "-cni", "bridge", "-proxy", mode)
	f.bridged = true
	f.makeImage(dir, "")
	f.apply(workload)
	f.mustAsk("run", "client2", "--image=registry.k8s.io/e2e-test-images/agnhost:2.63.0", "--labels=app=client2", `--overrides={"spec":{"nodeName":"node2"}}`)
	f.mustAsk("rollout", "status", "daemonset/echo", waitFlag)
	f.mustAsk("wait", "--for=condition=Ready", "pod/client", "pod/client2", "pod/leaving", waitFlag)
	requests := f.startSources()
	requests = append(requests, f.newSource("pod2", f.podPlace("node2", "client2"), []target{{"a pod of node2, ClusterIP", "tcp", f.clusterIP("echo")}}))
	var mixed sources
	run := func(name string, fn func()) {
		t.Helper()
		t.Log(name)
		fn()
		slices.Concat(requests, mixed).check(f)
		if t.Failed() {
			t.FailNow() // the following steps depend on it
		}
	}
	before, held := f.pods(), map[string]map[int]netip.AddrPort{}
	run("kube-proxy alone", func() {
		for node, name := range clientsOfOldPlugin() {
			held[name] = f.peers(f.podPlace(node, name))
		}
	})
	run("install", func() { f.install(dir, "-routing", routing, "-set", "podNetwork=main") })
	run("former pods by the socket", func() { f.bySocket(held) })
	once := f.startSources() // the agents translate the connections that these hold
	once[:len(once)-1].stop()
	requests = append(requests, once[len(once)-1])
	run("back to kube-proxy", func() { f.clean(true) })
	run("and again", func() { f.clean(false) })
	run("new pods", func() { mixed = f.startMixed(before) })
	run("kube-proxy ends", f.endProxies)
	requests.stop() // netfilter translates the connections that they hold
	requests = nil
	f.awaitImportEnd()
	run("without its rules", func() {
		requests = f.startSources()
		f.removeRules(mode)
	})
}

// clientsOfOldPlugin returns the client pods of the former plugin, by node.
func clientsOfOldPlugin() map[string]string {
	return map[string]string{"node1": "client", "node2": "client2"}
}

// clean replaces the agents with cleanup jobs, or starts agents again. The outside client's
// connections, which the agents translate, continue through netfilter.
func (f *fixture) clean(is bool) {
	f.t.Helper()
	f.helm("upgrade", "--namespace=kube-system", "--reuse-values", fmt.Sprintf("--set=cleanup=%v", is), "--wait", "--wait-for-jobs", "--timeout=3m", "fairlead", "charts/fairlead")
	if !is {
		f.agents()
		return
	}
	for _, job := range strings.Fields(f.mustAsk("--namespace=kube-system", "get", "jobs", "--output=name")) {
		text := f.mustAsk("--namespace=kube-system", "logs", job)
		first, _, _ := strings.Cut(text, "\n")
		if !strings.Contains(first, "netfilter goes on with") {
			earlier := f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=batch.kubernetes.io/job-name="+strings.TrimPrefix(job, "job.batch/"),
				"--output=jsonpath={.items[*].status.containerStatuses[*].lastState.terminated.message}")
			f.t.Errorf("%s hands no connection over to netfilter:\n%s\nbefore that:\n%s", job, text, earlier)
		}
		summary, _, _ := strings.Cut(text, "removed ")
		f.t.Log(summary)
	}
}

// clusterIP returns the address and port of a Service of the cluster.
func (f *fixture) clusterIP(name string) string {
	f.t.Helper()
	return f.mustAsk("get", "service", name, "--output=jsonpath={.spec.clusterIP}") + ":80"
}

// podState is the state of a pod that must not change while nobody restarts it.
type podState struct {
	UID, Node, IP string
	Restarts      int
}

// pods returns all pods that have their own address, and checks that no two share one.
func (f *fixture) pods() map[string]podState {
	f.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Namespace, Name, UID string }
			Spec     struct {
				NodeName    string
				HostNetwork bool
			}
			Status struct {
				PodIP             string
				ContainerStatuses []struct{ RestartCount int }
			}
		}
	}
	text := f.mustAsk("get", "pods", "--all-namespaces", "--output=json")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		f.t.Fatal(err)
	}
	all, whose := map[string]podState{}, map[string]string{}
	for _, p := range list.Items {
		if p.Spec.HostNetwork {
			continue
		}
		name := p.Metadata.Namespace + "/" + p.Metadata.Name
		if other := whose[p.Status.PodIP]; other != "" || p.Status.PodIP == "" {
			f.t.Errorf("%s has the address %q, which %q has too", name, p.Status.PodIP, other)
		}
		whose[p.Status.PodIP] = name
		is := podState{UID: p.Metadata.UID, Node: p.Spec.NodeName, IP: p.Status.PodIP}
		for _, c := range p.Status.ContainerStatuses {
			is.Restarts += c.RestartCount
		}
		all[name] = is
	}
	return all
}

// peers returns the peers of the TCP connections in a place as the kernel sees them, by local port.
func (f *fixture) peers(at place.Place) map[int]netip.AddrPort {
	f.t.Helper()
	found := map[int]netip.AddrPort{}
	err := at.Do(func() error {
		list, err := netlink.SocketDiagTCP(netlink.FAMILY_V4)
		for _, s := range list {
			const established = 1
			if addr, ok := netip.AddrFromSlice(s.ID.Destination); ok && s.State == established {
				found[int(s.ID.SourcePort)] = netip.AddrPortFrom(addr.Unmap(), s.ID.DestinationPort)
			}
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

// bySocket checks that the connections of former pods to a Service go to the backend itself, except
// for those that existed before, which continue.
func (f *fixture) bySocket(held map[string]map[int]netip.AddrPort) {
	service := netip.MustParseAddrPort(f.clusterIP("echo"))
	for node, name := range clientsOfOldPlugin() {
		at := f.podPlace(node, name)
		// A connection that is kept open can be inspected.
		f.newSource(name, at, []target{{name + ", once more", "tcp", service.String()}})
		before, direct := 0, 0
		for port, peer := range f.peers(at) {
			switch {
			case peer == service && held[name][port] == service:
				before++
			case peer == service:
				f.t.Errorf("%s has a new connection to the Service's own address, from port %d", name, port)
			case peer.Port() == 8080:
				direct++
			}
		}
		if before == 0 || direct == 0 {
			f.t.Errorf("%s has %d earlier connections and %d to backends, want some of both", name, before, direct)
		}
		f.t.Logf("%s: %d earlier connections through netfilter, %d to backends", name, before, direct)
	}
}

// startMixed starts pods that get their network from the agent, and has former and new pods send
// requests to each other, by address and through Services, on the same node and on the other one.
func (f *fixture) startMixed(before map[string]podState) (all sources) {
	f.apply(migration)
	f.mustAsk("rollout", "status", "daemonset/fresh", waitFlag)
	now := f.pods()
	for name, was := range before {
		if diff := cmp.Diff(was, now[name]); diff != "" {
			f.t.Errorf("%s (-before +now):\n%s", name, diff)
		}
	}
	targets := []target{{"Service of former pods", "tcp", f.clusterIP("echo")}, {"Service of new pods", "tcp", f.clusterIP("fresh")}}
	places, ours := map[string]place.Place{}, f.ours()
	for node, name := range clientsOfOldPlugin() {
		places[name] = f.podPlace(node, name)
	}
	for full, pod := range now {
		_, name, _ := strings.Cut(full, "/")
		isNew := strings.HasPrefix(name, "fresh-")
		if isNew {
			places[name] = f.podPlace(pod.Node, name)
		}
		if isNew != slices.Contains(ours, pod.IP) {
			f.t.Errorf("the address of %s is %s; the agents gave out %v", name, pod.IP, ours)
		}
		if isNew || strings.HasPrefix(name, "echo-") {
			targets = append(targets, target{name + " of " + pod.Node, "tcp", pod.IP + ":8080"})
		}
	}
	if len(places) != 2*f.Nodes || len(targets) != 2+2*f.Nodes {
		f.t.Fatalf("%d pods send requests, to %d targets", len(places), len(targets))
	}
	for name, at := range places {
		var list []target
		for _, to := range targets {
			list = append(list, target{name + " to " + to.Name, to.Network, to.Address})
		}
		all = append(all, f.newSource(name, at, list))
	}
	return all
}

// ours returns the addresses that the agents have given to pods.
func (f *fixture) ours() (list []string) {
	f.t.Helper()
	for _, pod := range strings.Fields(f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=app.kubernetes.io/name=fairlead", "--output=name")) {
		var rows []struct{ Address string }
		text := f.mustAsk("--namespace=kube-system", "exec", pod, "--container=agent", "--", "/fairlead", "ipam", "list", "--output=json")
		if err := json.Unmarshal([]byte(text), &rows); err != nil {
			f.t.Fatalf("%v: %s", err, text)
		}
		for _, r := range rows {
			list = append(list, r.Address)
		}
	}
	return list
}

// endProxies stops kube-proxy on every node, leaving its rules, and waits until the agent has taken
// over its ports.
func (f *fixture) endProxies() {
	for _, node := range f.Names() {
		ended := 0
		for pid := range f.processes(node) {
			if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.HasPrefix(filepath.Base(program), "kube-proxy-") {
				if err := unix.Kill(pid, unix.SIGTERM); err != nil {
					f.t.Fatal(err)
				}
				ended++
			}
		}
		if ended != 1 {
			f.t.Fatalf("%s has %d processes of kube-proxy", node, ended)
		}
	}
	for _, pod := range strings.Fields(f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=app.kubernetes.io/name=fairlead", "--output=name")) {
		f.await("the agent takes over kube-proxy's ports", func() error {
			text, err := f.ask("--namespace=kube-system", "exec", pod, "--container=agent", "--", "/fairlead", "status")
			if err == nil && !strings.HasSuffix(strings.TrimSpace(text), "healthy") {
				err = errors.New(text)
			}
			return err
		})
	}
}

// awaitImportEnd waits until the agents leave no more UDP to netfilter. A client would meet that again
// if it got the port of an earlier one.
func (f *fixture) awaitImportEnd() {
	f.t.Helper()
	for _, pod := range strings.Fields(f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=app.kubernetes.io/name=fairlead", "--output=name")) {
		f.await("netfilter translates no UDP from outside", func() error {
			text, err := f.ask("--namespace=kube-system", "exec", pod, "--container=agent", "--", "/fairlead", "conntrack", "list", "--output=json")
			if err != nil {
				return err
			}
			var flows []snapshot.Flow
			if err := json.Unmarshal([]byte(text), &flows); err != nil {
				return err
			}
			flows = slices.DeleteFunc(flows, func(flow snapshot.Flow) bool { return flow.Protocol != "udp" || flow.Backend != flow.Frontend })
			if len(flows) > 0 {
				return fmt.Errorf("%s has %d flows, such as %+v", pod, len(flows), flows[0])
			}
			return nil
		})
	}
}

// proxyRules match what kube-proxy's rules have in each mode, and those of a kubelet do not, in what
// the command lists.
var proxyRules = map[string]struct {
	list []string
	has  *regexp.Regexp
}{
	"iptables": {[]string{"iptables-save"}, regexp.MustCompile(`(?m)^:KUBE-(SERVICES|NODEPORTS|POSTROUTING|FORWARD|PROXY-|SVC-|SEP-|EXT-)`)},
	"nftables": {[]string{"nft", "list", "tables"}, regexp.MustCompile("kube-proxy")},
}

// removeRules removes the rules that kube-proxy left on the nodes.
func (f *fixture) removeRules(mode string) {
	programs, err := pinned.Find("kube-proxy")
	if err != nil {
		f.t.Fatal(err)
	}
	proxy, err := programs.Binary("kube-proxy")
	if err != nil {
		f.t.Fatal(err)
	}
	rules := proxyRules[mode]
	for _, node := range f.Names() {
		at, err := f.Node(node)
		if err != nil {
			f.t.Fatal(err)
		}
		run := func(args ...string) string {
			var out strings.Builder
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := at.Run(cmd); err != nil {
				f.t.Fatalf("%v: %v\n%s", args, err, &out)
			}
			return out.String()
		}
		before := run(rules.list...)
		run(proxy.Path, "--cleanup", "--proxy-mode="+mode)
		if after := run(rules.list...); !rules.has.MatchString(before) || rules.has.MatchString(after) {
			f.t.Errorf("%s had the rules\n%sand has\n%s", node, before, after)
		}
	}
}
