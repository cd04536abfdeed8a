package bpf

import (
	"encoding/binary"
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// seenBefore makes the last packet of all flows be of an earlier tick, so that the next one is noted in their
// rows.
func (h *routerPolicies) seenBefore(t *testing.T) {
	t.Helper()
	h.changeFlows(t, func(_ *bpf.MapsFlow, row *bpf.MapsPolicyFlow) { row.Seen-- })
}

// changeFlows changes the rows of all flows of which both ends have sent something.
func (h *routerPolicies) changeFlows(t *testing.T, change func(*bpf.MapsFlow, *bpf.MapsPolicyFlow)) {
	t.Helper()
	var key bpf.MapsFlow
	var row bpf.MapsPolicyFlow
	for rows := h.maps.PolicyFlows.Iterate(); rows.Next(&key, &row); {
		change(&key, &row)
		if err := h.maps.PolicyFlows.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
}

// open opens a flow between two pods that are both isolated, and has the sender's row say that the receiver
// accepts it too. It returns packets of the flow.
func (h *routerPolicies) open(t *testing.T, proto byte, from, to string) (there, back packet) {
	t.Helper()
	there = packet{from: h.addrs[0] + from, to: h.addrs[1] + to, proto: proto, flags: syn}
	back = packet{from: there.to, to: there.from, proto: proto, flags: syn | ack}
	h.passes(t, h.pods[0], h.pods[1], there)
	h.passes(t, h.pods[1], h.pods[0], back)
	there.flags, back.flags = ack, ack
	h.passes(t, h.pods[0], h.pods[1], there)
	h.passes(t, h.pods[1], h.pods[0], back)
	h.seenBefore(t)
	h.passes(t, h.pods[0], h.pods[1], there)
	noted := 0
	h.changeFlows(t, func(_ *bpf.MapsFlow, row *bpf.MapsPolicyFlow) {
		if row.Next != 0 {
			noted++
		}
	})
	if noted == 0 {
		t.Fatal("no row says that the receiver accepts its flow")
	}
	h.passes(t, h.pods[0], h.pods[1], there)
	h.passes(t, h.pods[1], h.pods[0], back)
	return there, back
}

// newRouterFastPath returns a node whose packets bypass the stack, with ticks longer than a test, and policies
// that accept what a pod sends.
func newRouterFastPath(t *testing.T, f family) *routerPolicies {
	t.Helper()
	config := standardConfig()
	config.TickShift, config.Bypass, config.Policies = 31, 1, 1
	h := newRouterPoliciesOf(t, f, config)
	for pod := range 2 {
		h.isolate(t, pod, uint32(pod+1), 0)
		h.decide(t, pod, egress, 0, all(accepted))
		h.decide(t, pod, ingress, 0, all(accepted))
	}
	return h
}

// The fast path of packets whose flow both pods have accepted ends with the next packet if the policies of
// either do not accept it any longer, and what ends a connection is noted.
func TestPolicyFastPath(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterFastPath(t, f)
			generation := uint32(2)
			say := func(pod int, direction, verdict uint32) {
				generation++
				h.decide(t, pod, direction, 0, all(verdict))
				h.isolate(t, pod, generation, 0)
			}
			for i, proto := range []byte{tcp, udp} {
				for pod, direction := range []uint32{egress, ingress} {
					there, _ := h.open(t, proto, fmt.Sprintf(":%d", 1000+2*i+pod), ":80")
					say(pod, direction, denyRule)
					h.denied(t, h.pods[0], there)
					h.denied(t, h.pods[0], there)
					say(pod, direction, accepted)
					h.passes(t, h.pods[0], h.pods[1], there)
				}
			}
			there, back := h.open(t, tcp, ":1010", ":80")
			there.flags = ack | 1 // FIN
			h.passes(t, h.pods[0], h.pods[1], there)
			ended := 0
			h.changeFlows(t, func(_ *bpf.MapsFlow, row *bpf.MapsPolicyFlow) {
				if row.Ends != 0 {
					ended++
				}
			})
			if ended != 2 {
				t.Errorf("%d rows say that the connection ends, want 2", ended)
			}
			h.passes(t, h.pods[1], h.pods[0], back)
		})
	}
}

// Nobody's packets take the fast path of another flow, whatever they look like, and whatever was asked about
// before them.
func TestPolicyFastPathOfAnother(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterFastPath(t, f)
			h.decide(t, 1, ingress, 0, all(denyRule))
			h.decide(t, 1, ingress, 1, only(udp, 80)...)
			there, _ := h.open(t, udp, ":1000", ":80")
			var next uint64
			h.changeFlows(t, func(_ *bpf.MapsFlow, row *bpf.MapsPolicyFlow) { next |= row.Next })

			// The row of a flow that its receiver does not accept has what the other's says.
			other := packet{from: h.addrs[0] + ":1001", to: h.addrs[1] + ":81", proto: udp}
			h.denied(t, h.pods[0], other)
			var key bpf.MapsFlow
			var row bpf.MapsPolicyFlow
			moved := 0
			for rows := h.maps.PolicyPending.Iterate(); rows.Next(&key, &row); {
				if key.Dport != maps.PortOf(81) {
					continue // what the pod's kernel says
				}
				moved++
				row.Next = next
				if err := h.maps.PolicyFlows.Put(key, row); err != nil {
					t.Fatal(err)
				}
			}
			if moved != 1 {
				t.Fatalf("%d flows to port 81 wait for an answer, want the one that was denied", moved)
			}
			h.denied(t, h.pods[0], other)

			// What was read of a packet that went elsewhere is not taken for this one. It is the CPU's.
			cpu, err := rig.NextCPU()
			if err != nil {
				t.Fatal(err)
			}
			if err := cpu.Do(func() error {
				h.passes(t, h.pods[0], h.outside, packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: udp})
				h.denied(t, h.pods[0], other)
				h.passes(t, h.pods[0], h.pods[1], there)
				return nil
			}); err != nil {
				t.Fatal(err)
			}

			// A later fragment without a first one, and options, that look like the ports of an accepted flow.
			ports := []byte{1000 >> 8, 1000 & 0xff, 0, 80, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
			h.deniedOnce(t, "a later fragment", func() {
				h.pods[0].later(t, datagram{from: host(h.addrs[0]), to: host(h.addrs[1]), proto: udp, id: 9, fragment: 101, payload: ports})
			})
			if f.any == "[::]" {
				return
			}
			other.options = 1
			frame := other.bytes()
			copy(frame[34:], ports[:4])
			copy(frame[24:], []byte{0, 0})
			binary.BigEndian.PutUint16(frame[24:], sum16(frame[14:38]))
			h.deniedOnce(t, "a packet with options", func() { h.pods[0].put(t, frame) })
		})
	}
}
