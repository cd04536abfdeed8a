package main

import (
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

const moreServices = `---
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shop, annotations: {fairlead.io/algorithm: ALGORITHM}}
spec: {type: NodePort, clusterIP: 10.96.0.12, clusterIPs: [10.96.0.12], ports: [{port: 80, nodePort: 30082}]AFFINITY}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-1, namespace: shop, labels: {kubernetes.io/service-name: many}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: node-a}, {addresses: [10.244.1.6], nodeName: node-a}, {addresses: [10.244.1.7], nodeName: node-a}]
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.13, clusterIPs: [10.96.0.13], loadBalancerSourceRanges: [192.0.2.0/24, 203.0.113.0/24], ports: [{port: 80, nodePort: 30083}]}
status: {loadBalancer: {ingress: [{ip: 198.18.0.9}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far-1, namespace: shop, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [192.0.2.7], nodeName: node-b}]
`

const toMany = outsideNode + ":30082"

func manyServices(algorithm, affinity string) string {
	return outsideServices + strings.NewReplacer("ALGORITHM", algorithm, "AFFINITY", affinity).Replace(moreServices)
}

// explainOutside explains what a client outside gets.
func (s *served) explainOutside(args ...string) (e explain.Explanation) {
	s.t.Helper()
	out, err := rig.RunChild(nil, s.ns, "fairlead", append(append([]string{"explain", "-o", "json"}, args...), s.flags...)...)
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		s.t.Fatalf("%v in %s", err, out)
	}
	return e
}

// dialFrom dials from a port of the client, and returns what answered.
func (s *served) dialFrom(port int, address string) (who string) {
	s.t.Helper()
	err := s.client.Do(func() error {
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(outsideClient), Port: port}}
		conn, err := dialer.Dial("tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		who = string(text)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return who
}

// traces is what packets leave behind.
type traces struct {
	Flows    int
	Affinity int
	Turns    []uint32
	Counters []reasons.Counter
}

func (s *served) traces() (have traces) {
	s.t.Helper()
	m, err := maps.Open(datapath.MapsDir(s.bpffs), true)
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Close()
	var key, value [64]byte
	for rows := m.Affinity.Iterate(); rows.Next(key[:24], value[:16]); {
		have.Affinity++
	}
	if have.Counters, err = reasons.ReadCounters(m.Counters); err != nil {
		s.t.Fatal(err)
	}
	for _, service := range s.content().services {
		have.Turns = append(have.Turns, service.Turn)
	}
	have.Flows = len(s.remembered())
	return have
}

// TestExplainOutside checks that clients outside get what was explained to them, and the
// explanation leaves no trace.
func TestExplainOutside(t *testing.T) {
	s := newServed(t, manyServices("random", ""))
	for _, addr := range []string{"10.244.1.6", "10.244.1.7"} {
		rig.Address(t, s.pod, "eth0", addr+"/24")
		if err := s.pod.Do(func() error { return answer(t, addr) }); err != nil {
			t.Fatal(err)
		}
	}
	port := 5000
	for _, tt := range []struct{ algorithm, affinity string }{
		{"random", ""}, {"maglev", ""}, {"round-robin", ""}, {"source-hash", ""}, {"random", ", sessionAffinity: ClientIP"},
	} {
		s.write("services.yaml", manyServices(tt.algorithm, tt.affinity))
		s.waitFor("the Service is as it should be", func() bool {
			e := s.explainOutside(outsideClient, toMany)
			return e.Algorithm == tt.algorithm && (e.Affinity == "none") == (tt.affinity == "")
		})
		by := map[string]string{"round-robin": explain.ByTurn}[tt.algorithm]
		if by == "" {
			by = explain.ByHash
		}
		for range 6 {
			port++
			from := netip.AddrPortFrom(netip.MustParseAddr(outsideClient), uint16(port))
			before := s.traces()
			e := s.explainOutside(from.String(), toMany)
			if diff := cmp.Diff(before, s.traces()); diff != "" {
				t.Fatalf("the question left a trace:\n%s", diff)
			}
			if e.Outcome != explain.ToBackend || e.Next == nil || e.Trial == nil || e.Trial.Source != from || e.Trial.Way != "" || len(e.Candidates) != 3 {
				t.Fatalf("%+v, %+v", e, e.Trial)
			}
			// A note would say that the number leads to another slot's backend.
			if e.Choice == nil || e.Choice.By != by || len(e.Notes) > 0 || e.Forwarding != explain.ByDNAT {
				t.Fatalf("%v: %+v, %q, %s; want by %s", tt, e.Choice, e.Notes, e.Forwarding, by)
			}
			if who := s.dialFrom(port, toMany); who != e.Next.Addr().String() {
				t.Errorf("%v: explained as %s, but %s answers", tt, e.Next, who)
			}
			if tt.affinity != "" {
				by = explain.ByAffinity
			}
		}
	}
}

// TestExplainOutsideOutcomes checks that packets that go elsewhere or nowhere are explained too.
func TestExplainOutsideOutcomes(t *testing.T) {
	s := newServed(t, manyServices("random", ""))
	for _, tt := range []struct {
		args []string
		says []string
	}{
		{[]string{outsideClient, toEmpty}, []string{"dropped: no-backend, and the client gets a TCP reset or an ICMP error", "shop/empty/tcp4", "cause ", "cure "}},
		{[]string{outsideClient, "198.18.0.9:80"}, []string{
			"goes to 192.0.2.7:8080", "192.0.2.0/24 admits the client", "eth0, at tc", "rewritten  192.0.2.1:", "LoadBalancer", "way        eth0"}},
		{[]string{"198.51.100.9", "198.18.0.9:80"}, []string{"dropped: source-range\n", "none contains the client", "spec.loadBalancerSourceRanges"}},
		{[]string{outsideClient, "10.96.0.10:80"}, []string{"dropped: cluster-ip"}},
		{[]string{outsideClient, outsideNode + ":22"}, []string{"left to the node's own stack: no service has 192.0.2.1:22/tcp"}},
		{[]string{outsideClient, toWeb, "--protocol", "udp"}, []string{"left to the node's own stack", "NEAREST"}},
		{[]string{outsideClient, toWeb, "--device", "eth0"}, []string{"goes to 10.244.1.5:8080", "a client outside (192.0.2.7:40000)"}},
		{[]string{outsidePod, toWeb}, []string{"a pod of this node"}},
		{[]string{"node", toWeb}, []string{"a process of the node"}},
		{[]string{outsideNode, toWeb}, []string{"a process of the node"}},
	} {
		out, err := rig.RunChild(nil, s.ns, "fairlead", append(append([]string{"explain"}, tt.args...), s.flags...)...)
		for _, says := range tt.says {
			if err != nil || !strings.Contains(out, says) {
				t.Errorf("%q: %v, no %q in:\n%s", tt.args, err, says, out)
			}
		}
	}
	out, err := rig.RunChild(nil, s.ns, "fairlead", append([]string{"explain", outsideClient, toWeb, "--device", "pod0"}, s.flags...)...)
	if err == nil || !strings.Contains(out+err.Error(), "no programs are attached to the device") {
		t.Errorf("a device that is not served: %v, %s", err, out)
	}
	s.agent.Kill()
	out, err = rig.RunChild(nil, s.ns, "fairlead", append([]string{"explain", outsideClient, toWeb, "--device", "eth0"}, s.flags...)...)
	if err == nil || !strings.Contains(out+err.Error(), "no agent answers") {
		t.Errorf("without an agent: %v, %s", err, out)
	}
	for client, unsure := range map[string]bool{outsideClient: true, "node": false, outsideNode: false} {
		if e := s.explainOutside(client, toWeb); (len(e.Notes) == 1 && strings.Contains(e.Notes[0], "No agent answers")) != unsure {
			t.Errorf("without an agent, of %s: %q", client, e.Notes)
		}
	}
}

// TestExplainOutsidePort checks that the explained port is one that no other flow has, and XDP is
// tried where it would decide.
func TestExplainOutsidePort(t *testing.T) {
	s := newServed(t, manyServices("random", ""), "--xdp=generic")
	if got := s.dial(toWeb); got != outsidePod { // this also fills the neighbor table of the node
		t.Fatalf("%q answers", got)
	}
	client, vip := outsideClient+":4000", "198.18.0.9:80"
	first := s.explainOutside(client, vip)
	if first.Trial == nil || first.Trial.Hook != "xdp" || first.Trial.NextHop == "" || first.Trial.Source.Addr().String() != outsideNode {
		t.Fatalf("%+v", first.Trial)
	}
	other := [4]string{"203.0.113.5:999", vip, first.Trial.Source.String(), outsideClient + ":8080"}
	enterFlow(t, s.bpffs, "ct", model.TCP, other, [2]uint8{maps.FlowOpen, maps.FlowOpen}, 0)
	second := s.explainOutside(client, vip)
	if second.Trial == nil || second.Trial.Outcome != explain.TrialBackend || second.Trial.Source == first.Trial.Source {
		t.Errorf("%+v, but the port of %s belongs to another flow",
			second.Trial, first.Trial.Source)
	}
	if second.Forwarding != explain.BySNAT || second.Choice == nil || second.Choice.By != explain.ByHash {
		t.Errorf("%s, %+v", second.Forwarding, second.Choice)
	}
	known := [4]string{outsideClient + ":4001", vip, outsideNode + ":1999", outsideClient + ":8080"}
	enterFlow(t, s.bpffs, "ct", model.TCP, known, [2]uint8{maps.FlowOpen, maps.FlowOpen}, 0)
	third := s.explainOutside(known[0], vip)
	if third.Choice == nil || third.Choice.By != explain.ByFlow || third.Trial.Source.String() != known[2] {
		t.Errorf("a known flow: %+v, %+v", third.Choice, third.Trial)
	}
}
