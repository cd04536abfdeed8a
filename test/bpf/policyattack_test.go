package bpf

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
)

// now returns the tick.
func tickNow(t *testing.T) (ticks.Tick, uint32) {
	t.Helper()
	tick, err := ticks.Measure()
	if err != nil {
		t.Fatal(err)
	}
	now, err := tick.Now()
	if err != nil {
		t.Fatal(err)
	}
	return tick, now
}

// first makes policies be about a pod since just now, which may have flows from before until these ticks.
func (h *routerPolicies) first(t *testing.T, pod int, connections, answers uint32) {
	t.Helper()
	h.flag(t, pod)
	s := bpf.MapsPolicySubject{Subject: uint32(pod + 1), Scope: 1, Generation: 1}
	row := bpf.MapsPolicyPod{Subject: [2]bpf.MapsPolicySubject{s, s}, Adopts: connections, Answers: answers}
	if err := h.maps.PolicyPods.Put(h.list[pod].Index, row); err != nil {
		t.Fatal(err)
	}
}

// flows returns the rows of flows of which both ends have sent something, to or from a port of a pod.
func (h *routerPolicies) flows(t *testing.T, sport int) (rows []bpf.MapsPolicyFlow) {
	t.Helper()
	var key bpf.MapsFlow
	var row bpf.MapsPolicyFlow
	it := h.maps.PolicyFlows.Iterate()
	for it.Next(&key, &row) {
		if key.Sport == maps.PortOf(uint16(sport)) {
			rows = append(rows, row)
		}
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// Connections that a client never completes take no place of the pod for longer than a minute.
func TestAttackHalfOpen(t *testing.T) {
	h := newRouterPolicies(t, families()["v4"], true)
	h.isolate(t, 1, 1, 0)
	h.decide(t, 1, ingress, 0, only(tcp, 80)...)
	h.decide(t, 1, egress, 0, all(denyRule))
	for i := range 5 {
		dial := packet{from: addrPort(h.remote, 1000+i), to: h.addrs[1] + ":80", proto: tcp, flags: syn}
		h.passes(t, h.outside, h.pods[1], dial)
		h.passes(t, h.pods[1], h.outside, packet{from: dial.to, to: dial.from, proto: tcp, flags: syn | ack})
	}
	h.changeFlows(t, func(_ *bpf.MapsFlow, row *bpf.MapsPolicyFlow) { row.Seen -= 20 * 3600; row.Ends = 0 })
	spec, err := bpf.LoadSweep()
	if err != nil {
		t.Fatal(err)
	}
	sweep, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: h.maps.Replacements(spec)})
	if err != nil {
		t.Fatal(err)
	}
	defer sweep.Close()
	tick, _ := tickNow(t)
	if _, err := sweep.Programs[bpf.SweepProgSweepPolicyFlows].Run(&ebpf.RunOptions{Context: &maps.SweepRun{TickShift: tick.Shift}}); err != nil {
		t.Fatal(err)
	}
	if left := h.flows(t, 80); len(left) > 0 {
		t.Errorf("20 hours later %d of 5 half-open connections still have such rows", len(left))
	}
}

// A datagram that is taken for an answer to what came before a first policy does not open a flow that outlives the
// time for that.
func TestAttackDatagramStays(t *testing.T) {
	h := newRouterPolicies(t, families()["v4"], true)
	h.decide(t, 1, egress, 0, all(accepted))
	h.decide(t, 1, ingress, 0, all(denyRule))
	_, now := tickNow(t)
	h.first(t, 1, now+3600, now+100)
	h.denied(t, h.pods[0], packet{from: h.addrs[0] + ":50000", to: h.addrs[1] + ":8125", proto: udp})
	attack := packet{from: h.addrs[0] + ":53", to: h.addrs[1] + ":8125", proto: udp}
	h.passes(t, h.pods[0], h.pods[1], attack)
	h.passes(t, h.pods[0], h.pods[1], attack)
	h.first(t, 1, now-100, now-100)
	h.denied(t, h.pods[0], packet{from: h.addrs[0] + ":54", to: h.addrs[1] + ":8125", proto: udp})
	h.denied(t, h.pods[0], attack)
	h.isolate(t, 1, 2, 0) // an edit
	h.denied(t, h.pods[0], attack)
}

// A SYN whose flags are in its second fragment is a SYN, whatever stands behind the end of the first one.
func TestAttackTinyFragment(t *testing.T) {
	h := newRouterPolicies(t, families()["v4"], true)
	h.decide(t, 1, egress, 0, all(accepted))
	h.decide(t, 1, ingress, 0, all(denyRule))
	_, now := tickNow(t)
	h.first(t, 1, now+3600, 0)
	dial := packet{from: h.addrs[0] + ":53", to: h.addrs[1] + ":8080", proto: tcp, flags: syn}
	h.denied(t, h.pods[0], dial)
	whole := dial.bytes()[14+20:]
	d := datagram{from: host(h.addrs[0]), to: host(h.addrs[1]), proto: tcp, id: 99, fragment: 0x2000, payload: whole[:8]}
	pad := make([]byte, 12)
	pad[4], pad[5] = 0x50, ack
	h.pods[0].put(t, append(d.bytes(), pad...))
	rest := datagram{from: d.from, to: d.to, proto: tcp, id: 99, fragment: 1, payload: whole[8:]}
	h.pods[0].put(t, rest.bytes())
	seen := 0
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline) && seen < 2; {
		frame := make([]byte, 2048)
		_ = h.pods[1].socket.SetReadDeadline(deadline)
		n, err := h.pods[1].socket.Read(frame)
		if err != nil {
			break
		}
		if n >= 34 && frame[12] == 8 && frame[13] == 0 && frame[14+9] == tcp && binary.BigEndian.Uint16(frame[14+4:]) == 99 {
			seen++
			t.Logf("the pod gets %x", frame[14:n])
		}
	}
	if seen > 0 {
		t.Errorf("%d of the 2 fragments of a SYN that is denied reach the pod", seen)
	}
	// the same as answer to a connection of the pod: a SYN is judged by its own direction
	h.first(t, 1, 0, 0)
	there := packet{from: h.addrs[1] + ":4000", to: h.addrs[0] + ":4001", proto: tcp, flags: syn}
	h.passes(t, h.pods[1], h.pods[0], there)
	h.denied(t, h.pods[0], packet{from: there.to, to: there.from, proto: tcp, flags: syn})
	whole = packet{from: there.to, to: there.from, proto: tcp, flags: syn}.bytes()[14+20:]
	d.id, d.payload = 98, whole[:8]
	h.deniedOnce(t, "a SYN in two fragments", func() { h.pods[0].put(t, append(d.bytes(), pad...)) })
}

// What the node began is nobody else's when the address is no longer the node's.
func TestAttackOldAddressOfNode(t *testing.T) {
	h := newRouterPolicies(t, families()["v4"], true)
	h.isolate(t, 1, 1, 0)
	h.decide(t, 1, egress, 0, all(denyRule))
	h.decide(t, 1, ingress, 0, all(denyRule))
	node := h.f.node
	own := h.frames(t, 0, h.pods[1])
	p := packet{from: node + ":1500", to: h.addrs[1] + ":80", proto: udp, macs: h.pods[1].macs(false)}
	if _, err := own.Write(p.bytes()); err != nil {
		t.Fatal(err)
	}
	h.pods[1].want(t, p)
	h.pods[1].send(t, packet{from: p.to, to: p.from, proto: udp})
	for deadline := time.Now().Add(5 * time.Second); len(h.flows(t, 80)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no row")
		}
	}
	t.Logf("%+v", h.flows(t, 80))
	if err := h.maps.NodeAddrs.Delete(maps.AddrOf(netip.MustParseAddr(host(node)))); err != nil {
		t.Fatal(err)
	}
	h.isolate(t, 1, 2, 0)
	p.macs = ""
	other := p
	other.from = node + ":1501"
	h.denied(t, h.outside, other)
	h.denied(t, h.outside, p)
}

// A connection by the ports of one that has ended is not over.
func TestAttackPortsAgain(t *testing.T) {
	h := newRouterPolicies(t, families()["v4"], true)
	h.isolate(t, 1, 1, 0)
	h.decide(t, 1, ingress, 0, only(tcp, 80)...)
	h.decide(t, 1, egress, 0, all(denyRule))
	there := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: tcp}
	back := packet{from: there.to, to: there.from, proto: tcp}
	say := func(to, from byte) {
		there.flags, back.flags = to, from
		h.passes(t, h.pods[0], h.pods[1], there)
		h.passes(t, h.pods[1], h.pods[0], back)
	}
	for range 2 {
		say(syn, syn|ack)
		say(ack, ack)
		if rows := h.flows(t, 80); len(rows) != 1 || rows[0].Ends != 0 {
			t.Errorf("rows of a connection that nobody has ended: %+v", rows)
		}
		say(ack|fin, ack|fin)
	}
}
