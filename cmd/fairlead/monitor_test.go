package main

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/test/rig"
)

// The addresses of a node that clients outside reach, and its NodePorts.
const (
	outsideClient = "192.0.2.7"
	outsideNode   = "192.0.2.1"
	outsidePod    = "10.244.1.5"
	toWeb         = outsideNode + ":30080"
	toEmpty       = outsideNode + ":30081"
)

const outsideServices = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: node-a}]
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11], ports: [{port: 80, nodePort: 30081}]}
`

// served is a node with a client outside and a pod.
type served struct {
	*node
	client *rig.Netns
	pod    *rig.Netns
	events *ringbuf.Reader
}

func newServed(t *testing.T, manifests string, flags ...string) *served {
	s := &served{node: newNode(t), client: rig.NewNetns(t, "client")}
	pod := rig.NewNetns(t, "pod")
	s.pod = pod
	rig.Veth(t, s.ns, "eth0", s.client, "eth0")
	rig.Address(t, s.ns, "eth0", outsideNode+"/24")
	rig.Address(t, s.client, "eth0", outsideClient+"/24")
	rig.Route(t, s.ns, "0.0.0.0/0", outsideClient)
	rig.Veth(t, s.ns, "pod0", pod, "eth0")
	rig.Address(t, s.ns, "pod0", "10.244.1.1/24")
	rig.Address(t, pod, "eth0", outsidePod+"/24")
	rig.Route(t, pod, "0.0.0.0/0", "10.244.1.1")
	if err := s.ns.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	if err := pod.Do(func() error { return answer(t, outsidePod) }); err != nil {
		t.Fatal(err)
	}
	s.write("services.yaml", manifests)
	s.startAgent(flags...)
	m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.MapsDir(s.bpffs), "events"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if s.events, err = ringbuf.NewReader(m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.events.Close() })
	return s
}

func (s *served) startAgent(flags ...string) {
	s.t.Helper()
	args := append([]string{
		"agent", "--source=" + s.manifests, "--cgroup-root=" + s.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--devices=eth0",
	}, flags...)
	s.agent = rig.NewChild(s.t, nil, s.ns, "fairlead", append(args, s.flags...)...)
	s.run("status", "--wait", "--wait-duration=30s")
}

// dial dials from outside, and returns what answered.
func (s *served) dial(address string) string {
	s.t.Helper()
	who, _, _ := strings.Cut(rig.Child(s.t, nil, s.client, "connect", address, "1"), "=")
	return strings.TrimSpace(who)
}

// watch returns what the programs are asked to report.
func (s *served) watch() (w maps.Watch) {
	s.t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.MapsDir(s.bpffs), "watch"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Close()
	if err := m.Lookup(uint32(0), &w); err != nil {
		s.t.Fatal(err)
	}
	return w
}

// monitor starts a monitor, and returns once the programs report what it wants.
func (s *served) monitor(args ...string) *rig.Process {
	s.t.Helper()
	before := s.watch()
	p := rig.NewChild(s.t, nil, nil, "fairlead", append(append([]string{"monitor", "-o", "json"}, args...), s.flags...)...)
	s.waitFor("the monitor watches", func() bool { return s.watch().Until != before.Until && s.watch().Reasons != 0 })
	return p
}

func (s *served) event(p *rig.Process) (e monitor.Event) {
	s.t.Helper()
	line, err := p.ReadLine()
	if err == nil {
		err = json.Unmarshal([]byte(line), &e)
	}
	if err != nil {
		s.t.Fatalf("%v in %q", err, line)
	}
	return e
}

// pendingBytes returns how many bytes the programs have reported that nobody has read.
func (s *served) pendingBytes() int { return s.events.AvailableBytes() }

// TestMonitor checks that a monitor sees the drops and choices that it asked for, and costs nothing
// before and after, however it ends.
func TestMonitor(t *testing.T) {
	s := newServed(t, outsideServices)
	all := func() {
		t.Helper()
		if web, empty := s.dial(toWeb), s.dial(toEmpty); web != outsidePod || empty != "failed" {
			t.Fatalf("the Services answer %q and %q", web, empty)
		}
	}
	all()
	if n := s.pendingBytes(); n != 0 {
		t.Errorf("nobody watches, but the programs reported %d bytes", n)
	}

	watching, drops, elsewhere := s.monitor(), s.monitor("--reason", "no-backend,ttl"), s.monitor("--ip", "203.0.113.0/24")
	all()
	began := time.Now()
	e := s.event(watching)
	if from := e.Source.Addr().String(); from != outsideClient || e.NewSource != e.Source || e.Source.Port() == 0 {
		t.Errorf("source %s, new source %s", e.Source, e.NewSource)
	}
	if age := began.Sub(e.Time).Abs(); age > rigTime {
		t.Errorf("it happened at %s, %s off", e.Time, age)
	}
	e.Time, e.Source, e.NewSource = time.Time{}, netip.AddrPort{}, netip.AddrPort{}
	want := monitor.Event{
		Hook: "tc", Direction: "in", Device: "eth0", Verdict: "backend", Protocol: "tcp", TCPFlags: "SYN", Sample: 1,
		Destination: netip.MustParseAddrPort(toWeb), NewDestination: netip.MustParseAddrPort(outsidePod + ":8080"), Service: "shop/web/tcp4",
	}
	if e != want {
		t.Errorf("a choice: %+v\nwant %+v", e, want)
	}
	for _, p := range []*rig.Process{watching, drops} {
		e := s.event(p)
		if e.Verdict != "drop" || e.Reason != "no-backend" || e.Service != "shop/empty/tcp4" || e.Destination.String() != toEmpty || e.Bytes == 0 {
			t.Errorf("a drop: %+v", e)
		}
	}

	for _, p := range []*rig.Process{watching, drops, elsewhere} {
		if s.watch().Reasons == 0 {
			t.Error("the programs report nothing while somebody watches")
		}
		p.Kill() // as kill -9 does
	}
	s.waitFor("the programs report nothing", func() bool { return s.watch().Reasons == 0 })
	all()
	if n := s.pendingBytes(); n != 0 {
		t.Errorf("nobody watches any more, but the programs reported %d bytes", n)
	}
}

// rigTime is how far apart readings of the same clock may be.
const rigTime = 5 * time.Second

// TestMonitorOutlivesAgent checks that a monitor learns that its agent is gone, and the next agent
// does not continue for it.
func TestMonitorOutlivesAgent(t *testing.T) {
	s := newServed(t, outsideServices)
	watching := s.monitor()
	if got := s.dial(toWeb); got != outsidePod {
		t.Fatalf("%q answers", got)
	}
	// The programs are told before the monitor gets an answer; if the agent were killed in between,
	// the monitor would never have reached it.
	s.event(watching)
	s.agent.Kill()
	err := watching.Wait()
	if err == nil || !strings.Contains(err.Error(), "sends no more events (it has ended") {
		t.Errorf("the agent was killed: %v", err)
	}
	if s.watch().Reasons == 0 {
		t.Error("the killed agent has cleaned up")
	}
	s.startAgent()
	if s.watch().Reasons != 0 {
		t.Error("the new agent reports to monitors of the one before")
	}
	if got := s.dial(toWeb); got != outsidePod || s.pendingBytes() != 0 {
		t.Errorf("%q answers, the programs reported %d bytes", got, s.pendingBytes())
	}
}

func TestMonitorUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"--reason", "no-bakend"}, `unknown reason "no-bakend": use no-backend, `},
		{[]string{"--ip", "192.0.2"}, `--ip "192.0.2" is neither an address nor a prefix`},
		{[]string{"--ip", "fe80::1%eth0"}, "neither an address nor a prefix"},
		{[]string{"--port", "70000"}, "invalid argument"},
		{[]string{"--sample", "-1"}, "invalid argument"},
		{[]string{"-o", "yaml"}, "cannot be printed as YAML"},
	} {
		got := fairlead(t, append(append(nowhere(t), "monitor"), tt.args...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, tt.says) {
			t.Errorf("%q: exit %d, %s", tt.args, got.code, got.stderr)
		}
	}
	if got := fairlead(t, append(nowhere(t), "monitor")...); got.code != exitUnreachable {
		t.Errorf("without an agent: exit %d, %s", got.code, got.stderr)
	}
}
