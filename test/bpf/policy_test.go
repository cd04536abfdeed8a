package bpf

import (
	"net/netip"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
)

const (
	ingress = uint32(bpf.MapsPolicyDirectionPOLICY_INGRESS)
	egress  = uint32(bpf.MapsPolicyDirectionPOLICY_EGRESS)

	accepted = uint32(1 << 31)
	// Rules of the policies of these tests.
	acceptRule = uint32(bpf.MapsPolicyRulePOLICY_RULES)
	denyRule   = acceptRule + 1
)

// key returns the key of a protocol and port among runs.
func key(proto byte, port uint32) uint32 {
	of := map[byte]bpf.MapsPolicyProtocol{tcp: bpf.MapsPolicyProtocolPOLICY_TCP, udp: bpf.MapsPolicyProtocolPOLICY_UDP, sctp: bpf.MapsPolicyProtocolPOLICY_SCTP}
	return uint32(of[proto])<<bpf.MapsPolicyProtocolPOLICY_PROTOCOL_SHIFT | port
}

// routerPolicies is a node whose two pods have policies. The class of a pod's address is one more than
// its number, and all else has class 0.
type routerPolicies struct {
	*routerTwoPods
	list []maps.Pod
	runs uint32 // written so far
}

func newRouterPolicies(t *testing.T, f family, bypass bool) *routerPolicies {
	t.Helper()
	config := standardConfig()
	config.Policies = 1
	if bypass {
		config.Bypass = 1
	}
	return newRouterPoliciesOf(t, f, config)
}

func newRouterPoliciesOf(t *testing.T, f family, config bpf.MapsPacketConfig) *routerPolicies {
	t.Helper()
	h := &routerPolicies{routerTwoPods: newRouterTwoPodsOf(t, f, config)}
	h.outside.reach(t, h.remote, true)
	for i, w := range h.pods {
		addr := netip.MustParseAddr(host(h.addrs[i]))
		h.list = append(h.list, maps.Pod{
			Addrs: []netip.Addr{addr}, Index: uint32(w.near.Attrs().Index), MAC: [6]byte(w.end.Attrs().HardwareAddr), HostMAC: [6]byte(w.near.Attrs().HardwareAddr),
		})
		class := bpf.MapsPolicyClass{Class: [2]uint32{uint32(i + 1), uint32(i + 1)}}
		if err := h.maps.PolicyPeers.Put(maps.AddrOf(addr), class); err != nil {
			t.Fatal(err)
		}
		view := bpf.MapsPolicyView{Scope: 1, Class: uint32(i + 1)}
		if err := h.maps.PolicyViews.Put(view, class); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// isolate sets the flag of pods, and writes what policies say about a pod in both versions. Its subject
// is its number and one.
func (h *routerPolicies) isolate(t *testing.T, pod int, generation uint32, flags uint32) {
	t.Helper()
	s := bpf.MapsPolicySubject{Subject: uint32(pod + 1), Scope: 1, Generation: generation, Flags: flags}
	if err := h.maps.PolicyPods.Put(h.list[pod].Index, bpf.MapsPolicyPod{Subject: [2]bpf.MapsPolicySubject{s, s}}); err != nil {
		t.Fatal(err)
	}
	h.flag(t, pod)
}

// flag makes the programs ask policies about a pod.
func (h *routerPolicies) flag(t *testing.T, pod int) {
	t.Helper()
	h.list[pod].Policy = true
	if err := h.maps.PolicyState.Put(uint32(0), bpf.MapsPolicyState{Pods: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.maps.SetPods(h.list); err != nil {
		t.Fatal(err)
	}
}

// decide writes what policies say about the packets of a pod in one direction to or from a class.
func (h *routerPolicies) decide(t *testing.T, pod int, direction, class uint32, runs ...bpf.MapsPolicyRun) {
	t.Helper()
	for i, run := range runs {
		if err := h.maps.PolicyRuns.Put(h.runs+uint32(i), run); err != nil {
			t.Fatal(err)
		}
	}
	at := bpf.MapsPolicyDecisionKey{Subject: uint32(pod + 1), Class: class, Direction: direction}
	ports := bpf.MapsPolicyPorts{First: h.runs, Count: uint32(len(runs))}
	if err := h.maps.PolicyDecisions.Put(at, bpf.MapsPolicyDecision{Ports: [2]bpf.MapsPolicyPorts{ports, ports}}); err != nil {
		t.Fatal(err)
	}
	h.runs += uint32(len(runs))
}

// all returns the runs by which everything has the same verdict.
func all(verdict uint32) bpf.MapsPolicyRun { return bpf.MapsPolicyRun{Verdict: verdict} }

// only returns the runs that accept nothing but a port.
func only(proto byte, port uint32) []bpf.MapsPolicyRun {
	return []bpf.MapsPolicyRun{
		{Verdict: denyRule}, {From: key(proto, port), Verdict: accepted | acceptRule}, {From: key(proto, port+1), Verdict: denyRule},
	}
}

// passes fails unless a packet of one wire comes out of the other.
func (h *routerPolicies) passes(t *testing.T, from, to *wire, p packet) {
	t.Helper()
	from.send(t, p)
	to.want(t, withTTL(p, 63))
}

// denied fails unless a packet is dropped because of policies.
func (h *routerPolicies) denied(t *testing.T, from *wire, p packet) {
	t.Helper()
	h.deniedOnce(t, p.from+" to "+p.to, func() { from.send(t, p) })
}

// deniedOnce fails unless one packet is dropped because of policies when it is sent.
func (h *routerPolicies) deniedOnce(t *testing.T, what string, send func()) {
	t.Helper()
	before := h.countedAt(t, "pod", "policy")
	send()
	for deadline := time.Now().Add(5 * time.Second); h.countedAt(t, "pod", "policy") != before+1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s was not denied; counted: %v", what, h.reasons(t))
		}
	}
}

// policyRouters runs a test in both families, in one past the stack and in the other through it.
func policyRouters(t *testing.T, run func(*testing.T, *routerPolicies)) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) { run(t, newRouterPolicies(t, f, name == "v4")) })
	}
}

// A pod that accepts one port gets what is for it, and may answer although it may not send anything on its
// own. The same for clients outside. Who has no policy is not affected.
func TestPolicyIngress(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		h.isolate(t, 1, 1, 0)
		h.decide(t, 1, ingress, 0, all(denyRule))
		h.decide(t, 1, egress, 0, all(denyRule))
		h.decide(t, 1, ingress, 1, only(tcp, 80)...)
		dial := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: tcp, flags: syn}
		h.passes(t, h.pods[0], h.pods[1], dial)
		answer := packet{from: dial.to, to: dial.from, proto: tcp, flags: syn | ack}
		h.passes(t, h.pods[1], h.pods[0], answer)
		dial.flags, answer.flags = ack, ack
		h.passes(t, h.pods[0], h.pods[1], dial)
		h.passes(t, h.pods[1], h.pods[0], answer)

		// a connection of its own by the same ports, other ports, protocols and senders
		h.denied(t, h.pods[1], packet{from: dial.to, to: dial.from, proto: tcp, flags: syn})
		for _, p := range []packet{
			{from: h.addrs[0] + ":1001", to: h.addrs[1] + ":79", proto: tcp, flags: syn},
			{from: h.addrs[0] + ":1001", to: h.addrs[1] + ":81", proto: tcp, flags: syn},
			{from: h.addrs[0] + ":1001", to: h.addrs[1] + ":80", proto: udp},
			{from: h.addrs[0] + ":1001", to: h.addrs[1] + ":80", proto: sctp, flags: syn},
			{from: h.addrs[0] + ":1001", to: h.addrs[1] + ":81", proto: tcp, flags: ack},
		} {
			h.denied(t, h.pods[0], p)
		}
		h.denied(t, h.outside, packet{from: h.remote + ":1000", to: h.addrs[1] + ":80", proto: tcp, flags: syn})
		h.denied(t, h.pods[1], packet{from: h.addrs[1] + ":1000", to: h.addrs[0] + ":80", proto: tcp, flags: syn})
		h.denied(t, h.pods[1], packet{from: h.addrs[1] + ":80", to: h.addrs[0] + ":1005", proto: tcp, flags: syn | ack})
		h.denied(t, h.pods[1], packet{from: h.addrs[1] + ":80", to: h.remote + ":1005", proto: udp})

		h.decide(t, 1, ingress, 0, only(udp, 53)...)
		query := packet{from: h.remote + ":1000", to: h.addrs[1] + ":53", proto: udp}
		h.passes(t, h.outside, h.pods[1], query)
		h.passes(t, h.pods[1], h.outside, packet{from: query.to, to: query.from, proto: udp})
		h.passes(t, h.pods[0], h.outside, packet{from: h.addrs[0] + ":1000", to: h.remote + ":99", proto: udp})
	})
}

// Both ends of a flow between isolated pods are asked.
func TestPolicyBothEnds(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		for pod := range 2 {
			h.isolate(t, pod, uint32(pod+1), 0)
			h.decide(t, pod, ingress, 0, all(denyRule))
			h.decide(t, pod, egress, 0, all(denyRule))
		}
		dial := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: udp}
		h.denied(t, h.pods[0], dial)
		h.decide(t, 0, egress, 2, only(udp, 80)...)
		h.denied(t, h.pods[0], dial)
		h.decide(t, 1, ingress, 1, only(udp, 80)...)
		h.passes(t, h.pods[0], h.pods[1], dial)
		h.passes(t, h.pods[1], h.pods[0], packet{from: dial.to, to: dial.from, proto: udp})
	})
}

// A change of the rules ends flows that it forbids with the next packet, in both directions, and leaves
// the others alone. A change that only allows more needs no new generation.
func TestPolicyChange(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		h.isolate(t, 1, 1, 0)
		h.decide(t, 1, egress, 0, all(accepted))
		h.decide(t, 1, ingress, 0, all(denyRule))
		h.decide(t, 1, ingress, 1, all(accepted|acceptRule))
		for _, proto := range []byte{tcp, udp} {
			to := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":2000", proto: proto, flags: syn}
			back := packet{from: to.to, to: to.from, proto: proto, flags: syn | ack}
			h.passes(t, h.pods[0], h.pods[1], to)
			h.passes(t, h.pods[1], h.pods[0], back)
			to.flags, back.flags = ack, ack
			h.passes(t, h.pods[0], h.pods[1], to)

			h.isolate(t, 1, 2, 0)
			h.passes(t, h.pods[0], h.pods[1], to)
			h.decide(t, 1, ingress, 1, all(denyRule))
			h.passes(t, h.pods[0], h.pods[1], to)
			h.isolate(t, 1, 3, 0)
			h.denied(t, h.pods[0], to)
			h.denied(t, h.pods[0], to)
			if proto == tcp {
				h.denied(t, h.pods[1], back)
			} else { // an answer to what was accepted, and then a flow that the pod begins
				h.passes(t, h.pods[1], h.pods[0], back)
				h.denied(t, h.pods[0], to)
				h.passes(t, h.pods[1], h.pods[0], back)
				h.longDenied(t)
				h.denied(t, h.pods[0], to)
				h.passes(t, h.pods[1], h.pods[0], back)
				h.passes(t, h.pods[0], h.pods[1], to)
			}
			h.decide(t, 1, ingress, 1, all(accepted|acceptRule))
			h.passes(t, h.pods[0], h.pods[1], to)
			h.passes(t, h.pods[1], h.pods[0], back)
			h.isolate(t, 1, 1, 0)
		}
	})
}

// longDenied makes it long ago that flows were denied.
func (h *routerPolicies) longDenied(t *testing.T) {
	t.Helper()
	var key bpf.MapsFlow
	var row bpf.MapsPolicyFlow
	for rows := h.maps.PolicyFlows.Iterate(); rows.Next(&key, &row); {
		row.Denied -= 60
		if err := h.maps.PolicyFlows.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
}

// Answers of a pod to datagrams from before a policy was about it do not make what is denied look like answers
// to them.
func TestPolicyFirst(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		tick, err := ticks.Measure()
		if err != nil {
			t.Fatal(err)
		}
		now, err := tick.Now()
		if err != nil {
			t.Fatal(err)
		}
		for _, until := range []uint32{now + 100, now - 100} {
			h.isolate(t, 1, 1, 0)
			h.decide(t, 1, egress, 0, all(accepted))
			h.decide(t, 1, ingress, 0, all(denyRule))
			row := bpf.MapsPolicyPod{Answers: until}
			row.Subject[0] = bpf.MapsPolicySubject{Subject: 2, Scope: 1, Generation: 1}
			if err := h.maps.PolicyPods.Put(h.list[1].Index, row); err != nil {
				t.Fatal(err)
			}
			answer := packet{from: h.addrs[1] + ":53", to: h.remote + ":40000", proto: udp}
			more := packet{from: answer.to, to: answer.from, proto: udp}
			query := packet{from: h.addrs[1] + ":40000", to: h.remote + ":53", proto: udp}
			if until == now+100 {
				h.denied(t, h.pods[1], answer)
				h.denied(t, h.outside, more)
			} else {
				h.passes(t, h.pods[1], h.outside, answer)
				h.passes(t, h.outside, h.pods[1], more)
			}
			h.passes(t, h.pods[1], h.outside, query)
			h.passes(t, h.outside, h.pods[1], packet{from: query.to, to: query.from, proto: udp})
		}
	})
}

// As long as it is not known what policies say about a pod, nobody reaches it, and it reaches nobody.
func TestPolicyUnknown(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		h.flag(t, 1)
		h.denied(t, h.pods[0], packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: tcp, flags: syn})
		h.denied(t, h.pods[1], packet{from: h.addrs[1] + ":1000", to: h.addrs[0] + ":80", proto: tcp, flags: syn})
		h.denied(t, h.pods[1], packet{from: h.addrs[1] + ":1000", to: h.remote + ":80", proto: udp})
		h.denied(t, h.outside, packet{from: h.remote + ":1000", to: h.addrs[1] + ":80", proto: udp})

		// a subject without decisions is not known either
		h.isolate(t, 1, 1, 0)
		h.denied(t, h.pods[1], packet{from: h.addrs[1] + ":1000", to: h.remote + ":80", proto: udp})
	})
}

// What policies would deny goes on if they are only audited, and is counted once for each flow.
func TestPolicyAudit(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		h.isolate(t, 1, 1, uint32(bpf.MapsPolicySubjectFlagPOLICY_AUDIT))
		h.decide(t, 1, ingress, 0, all(denyRule))
		for range 3 {
			h.passes(t, h.pods[0], h.pods[1], packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: udp})
		}
		if n := h.countedAt(t, "pod", "policy-audit"); n != 1 {
			t.Errorf("%d packets are counted, want 1", n)
		}
	})
}

// One word switches all packets from one version of the rules to the other.
func TestPolicyVersion(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		both := bpf.MapsPolicyPod{Subject: [2]bpf.MapsPolicySubject{{Subject: 1, Scope: 1, Generation: 1}, {Subject: 2, Scope: 1, Generation: 2}}}
		h.flag(t, 1)
		if err := h.maps.PolicyPods.Put(h.list[1].Index, both); err != nil {
			t.Fatal(err)
		}
		h.decide(t, 0, ingress, 0, all(accepted))
		h.decide(t, 1, ingress, 0, all(denyRule))
		p := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: udp}
		h.passes(t, h.pods[0], h.pods[1], p)
		if err := h.maps.PolicyState.Put(uint32(0), bpf.MapsPolicyState{Version: 1, Pods: 1}); err != nil {
			t.Fatal(err)
		}
		h.denied(t, h.pods[0], p)
		if err := h.maps.PolicyState.Put(uint32(0), bpf.MapsPolicyState{Pods: 1}); err != nil {
			t.Fatal(err)
		}
		h.passes(t, h.pods[0], h.pods[1], p)
	})
}

// Later fragments go where their first one may go, and come to nothing without it.
func TestPolicyFragments(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		h.isolate(t, 1, 1, 0)
		h.decide(t, 1, ingress, 0, only(udp, 80)...)
		first := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: udp, fragment: 0x2000, payload: 800}
		later := datagram{from: host(h.addrs[0]), to: host(h.addrs[1]), proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
		before := h.countedAt(t, "pod", "policy")
		h.pods[0].later(t, later)
		h.pods[0].send(t, first)
		h.pods[1].want(t, withTTL(first, 63))
		h.pods[0].later(t, later)
		later.ttl = 63
		h.pods[1].wantLater(t, later)
		if n := h.countedAt(t, "pod", "policy"); n != before+1 {
			t.Errorf("%d fragments were denied, want the one before the first", n-before)
		}
		first.to = h.addrs[1] + ":81"
		h.denied(t, h.pods[0], first)
		if h.f.any != "[::]" { // the check at the pod's device drops it in IPv6
			h.denied(t, h.pods[0], packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: tcp, fragment: 0x2000, cut: 8})
		}
	})
}
