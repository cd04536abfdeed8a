package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, rig.Funcs{"fairlead": child, "connect": connect, "hold": hold, "await": await}))
}

// child runs a fairlead command in a process of its own.
func child(args []string) int {
	return execute(context.Background(), &env{Stdout: os.Stdout, Stderr: os.Stderr, Args: args})
}

// hold keeps a cgroup from being empty.
func hold([]string) int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// connect dials ADDRESS as often as told, and counts which backends answered.
func connect(args []string) int {
	times, err := strconv.Atoi(args[1])
	if err != nil {
		return 2
	}
	counts := map[string]int{}
	for range times {
		counts[dial(args[0])]++
	}
	for _, answer := range slices.Sorted(func(yield func(string) bool) {
		for answer := range counts {
			if !yield(answer) {
				return
			}
		}
	}) {
		fmt.Printf("%s=%d ", answer, counts[answer])
	}
	fmt.Println()
	return 0
}

func dial(address string) string {
	conn, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return "failed"
	}
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "failed"
	}
	return string(answer)
}

// node is the surroundings of an agent: manifests, backends that listen on addresses of a
// namespace's loopback device, and a cgroup whose sockets the programs see.
type node struct {
	t         *testing.T
	manifests string
	flags     []string
	bpffs     string
	ns        *rig.Netns
	cgroup    *rig.Cgroup
	agent     *rig.Process
}

const vip = "10.96.0.10:80"

func newNode(t *testing.T) *node {
	rig.Root(t)
	n := &node{t: t, manifests: t.TempDir(), bpffs: rig.BPFFS(t), ns: rig.NewNetns(t, "node"), cgroup: rig.NewCgroup(t)}
	n.flags = []string{"--bpffs=" + n.bpffs, "--state-dir=" + filepath.Join(t.TempDir(), "run")}
	// On the loopback device a prefix makes all its addresses local.
	if err := n.ns.AddAddr("lo", netip.MustParsePrefix("198.18.0.1/24")); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"198.18.0.1", "198.18.0.2"} {
		if err := n.ns.Do(func() error { return answer(t, addr) }); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func answer(t *testing.T, addr string) error {
	l, err := net.Listen("tcp", addr+":8080")
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, addr)
			conn.Close()
		}
	}()
	return nil
}

// service writes the manifests of the Service at vip with these backends.
func (n *node) service(addrs ...string) {
	n.t.Helper()
	text := `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
`
	for _, addr := range addrs {
		text += "- {addresses: [" + addr + "]}\n"
	}
	n.write("web.yaml", text)
}

// write replaces a file in one step, as an operator's tools do.
func (n *node) write(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.manifests, name)
	if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) start() {
	n.t.Helper()
	args := append([]string{
		"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn",
	}, n.flags...)
	n.agent = rig.NewChild(n.t, nil, nil, "fairlead", args...)
	n.run("status", "--wait", "--wait-duration=30s")
}

// run runs a command and returns what it printed.
func (n *node) run(args ...string) string {
	n.t.Helper()
	out, err := rig.RunChild(nil, nil, "fairlead", append(args, n.flags...)...)
	if err != nil {
		n.t.Fatalf("fairlead %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// connect dials vip from inside the cgroup and returns how often each backend answered.
func (n *node) connect(times int) map[string]int {
	n.t.Helper()
	counts := map[string]int{}
	for _, field := range strings.Fields(rig.Child(n.t, n.cgroup, n.ns, "connect", vip, strconv.Itoa(times))) {
		answer, count, _ := strings.Cut(field, "=")
		counts[answer], _ = strconv.Atoi(count)
	}
	return counts
}

// waitFor waits until the agent has done what a change of the manifests requires.
func (n *node) waitFor(what string, done func() bool) {
	n.t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("not in 20 s: %s", what)
		}
	}
}

// content returns a copy of all rows of the tables.
func (n *node) content() (rows struct {
	svcs     map[maps.SvcKey]maps.Svc
	services []maps.Service
	slots    []maps.Slot
	backends []maps.Backend
	names    []maps.NameText
}) {
	n.t.Helper()
	m, err := maps.Open(datapath.MapsDir(n.bpffs), true)
	if err != nil {
		n.t.Fatal(err)
	}
	defer m.Close()
	tables, err := m.Tables()
	if err != nil {
		n.t.Fatal(err)
	}
	defer tables.Close()
	rows.svcs = map[maps.SvcKey]maps.Svc{}
	if err := tables.Svcs.Each(func(key maps.SvcKey, row maps.Svc) { rows.svcs[key] = row }); err != nil {
		n.t.Fatal(err)
	}
	rows.services, rows.slots = slices.Clone(tables.Services), slices.Clone(tables.Slots)
	rows.backends, rows.names = slices.Clone(tables.Backends), slices.Clone(tables.Names)
	return rows
}

func TestAgentComesAndGoes(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1", "198.18.0.2")
	n.start()
	if got := n.connect(200); got["failed"] > 0 || got["198.18.0.1"] < 40 || got["198.18.0.2"] < 40 {
		t.Fatalf("200 connections went %v, want both backends", got)
	}

	n.agent.Kill() // as kill -9 does
	if got := n.connect(100); got["failed"] > 0 {
		t.Errorf("with the agent dead 100 connections went %v", got)
	}
	if got := n.run("service", "list"); !strings.Contains(got, "shop/web") {
		t.Errorf("service list with the agent dead says %q", got)
	}
	before := n.content()
	n.start()
	after := n.content()
	if len(before.svcs) != 1 || before.svcs[maps.SvcKey{}] != after.svcs[maps.SvcKey{}] ||
		!slices.Equal(before.services, after.services) || !slices.Equal(before.slots, after.slots) ||
		!slices.Equal(before.backends, after.backends) || !slices.Equal(before.names, after.names) {
		t.Error("a restart with nothing changed changed the maps")
	}

	n.agent.Kill()
	n.service("198.18.0.2")
	n.start()
	if got := n.connect(50); got["198.18.0.2"] != 50 {
		t.Errorf("a backend removed while the agent was dead: 50 connections went %v", got)
	}

	n.service()
	n.waitFor("a Service without backends refuses", func() bool { return n.connect(1)["failed"] == 1 })
	n.service("198.18.0.1")
	n.waitFor("it has a backend again", func() bool { return n.connect(1)["198.18.0.1"] == 1 })

	if err := os.Remove(filepath.Join(n.manifests, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	n.waitFor("the Service is gone from the maps", func() bool { return len(n.content().svcs) == 0 })
	n.agent.Kill()
	n.run("cleanup")
	if _, err := os.Stat(filepath.Join(n.bpffs, "fairlead")); !os.IsNotExist(err) {
		t.Errorf("cleanup left something in bpffs: %v", err)
	}
}

// TestMapsGrowUnderTraffic adds more Services than the maps of a cold start have room for, while a
// client connects.
func TestMapsGrowUnderTraffic(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1", "198.18.0.2")
	n.start()
	const services = 5000
	var text strings.Builder
	for i := range services {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: many}\n"+
			"spec: {clusterIP: 10.97.%d.%d, clusterIPs: [10.97.%d.%d], ports: [{port: 80}]}\n",
			i, i>>8, i&255, i>>8, i&255)
	}
	client := rig.NewChild(t, n.cgroup, n.ns, "connect", vip, "10000")
	n.write("many.yaml", text.String())
	n.waitFor("all Services are in the maps", func() bool { return len(n.content().svcs) == services+1 })
	out, err := client.ReadLine()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Wait(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "failed") || !strings.Contains(out, "198.18.0.1=") {
		t.Errorf("10000 connections while the maps grew: %s", out)
	}
	if got := len(n.content().services); got < services {
		t.Errorf("services has room for %d rows", got)
	}
}

// TestVerifyFindsDamage damages the maps under a running agent, which repairs them when told to.
func TestVerifyFindsDamage(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1", "198.18.0.2")
	n.start()
	if got := n.run("status"); !strings.Contains(got, " 1, with 1 frontends and 2 backends") {
		t.Errorf("the status counts otherwise than verify does:\n%s", got)
	}
	if got := n.run("verify"); !strings.Contains(got, "compared 1 services, 1 frontends and 2 backends") ||
		!strings.Contains(got, "the maps match the objects") {
		t.Errorf("sound maps: %s", got)
	}
	n.damage()
	if got := n.connect(1); got["failed"] != 1 {
		t.Fatalf("the damage has no effect: %v", got)
	}
	out, err := rig.RunChild(nil, nil, "fairlead", append([]string{"verify"}, n.flags...)...)
	if err == nil || strings.Count(out, " no\n") != 3 {
		t.Errorf("%v with %s, want an error and three differences", err, out)
	}
	if got := n.run("verify", "--repair"); strings.Count(got, " yes\n") != 3 || !strings.Contains(got, "3 differences, 3 mended") {
		t.Errorf("repairing: %s", got)
	}
	if got := n.connect(50); got["failed"] > 0 || got["198.18.0.1"] == 0 || got["198.18.0.2"] == 0 {
		t.Errorf("after the repair, 50 connections went %v", got)
	}

	n.agent.Kill()
	out, err = rig.RunChild(nil, nil, "fairlead", append([]string{"verify"}, n.flags...)...)
	if err == nil || !strings.Contains(out, "their structure is sound") {
		t.Errorf("without an agent: %v, %s", err, out)
	}
	n.damage()
	out, err = rig.RunChild(nil, nil, "fairlead", append([]string{"verify", "--repair"}, n.flags...)...)
	if err == nil || !strings.Contains(out, "10.99.0.1:80/tcp leads to service 9, which does not exist") {
		t.Errorf("damage without an agent: %v, %s", err, out)
	}
}

// damage removes the row of the Service's frontend, adds one that leads nowhere, and breaks a slot.
func (n *node) damage() {
	n.t.Helper()
	m, err := maps.Open(datapath.MapsDir(n.bpffs), false)
	if err != nil {
		n.t.Fatal(err)
	}
	defer m.Close()
	tables, err := m.Tables()
	if err != nil {
		n.t.Fatal(err)
	}
	defer tables.Close()
	at := netip.MustParseAddrPort(vip)
	if err := tables.Svcs.Delete([]maps.SvcKey{maps.KeyOf(at.Addr(), at.Port(), model.TCP)}); err != nil {
		n.t.Fatal(err)
	}
	foreign := maps.KeyOf(netip.MustParseAddr("10.99.0.1"), 80, model.TCP)
	if err := tables.Svcs.Update(foreign, maps.Svc{Service: 9}); err != nil {
		n.t.Fatal(err)
	}
	tables.Slots[maps.Word(tables.Services[1].Words[maps.ScopeAll]).Off()].Value ^= 1 << 30
}
