package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// masked runs a story on a node with two pods whose pods share the node's addresses toward the outside, past
// the stack and through it.
func masked(t *testing.T, story func(t *testing.T, h *routerTwoPods, f family, hops byte)) {
	t.Helper()
	rig.Root(t)
	for name, f := range families() {
		for _, bypass := range []uint32{0, 1} {
			t.Run(name+map[uint32]string{0: " by the stack", 1: " past it"}[bypass], func(t *testing.T) {
				t.Parallel()
				config := standardConfig()
				config.Bypass, config.Masquerade, config.SnatLast = bypass, 1, 61015 // each of two pods has four of eight ports
				h := newRouterTwoPodsOf(t, f, config)
				h.outside.reach(t, h.remote, true)
				h.native(t, host(h.addrs[0])+"/"+map[bool]string{true: "24", false: "64"}[!strings.Contains(h.remote, "[")])
				story(t, h, f, 63)
			})
		}
	}
}

// native sets the networks that know the pods' addresses.
func (h *routerTwoPods) native(t *testing.T, prefixes ...string) {
	t.Helper()
	var list []netip.Prefix
	for _, p := range prefixes {
		list = append(list, netip.MustParsePrefix(p))
	}
	if _, err := h.maps.SetNative(list); err != nil {
		t.Fatal(err)
	}
}

// Packets from a pod to the outside get the node's address and a port from the range for pods, a
// different one for each flow; answers to it reach the pod.
func TestMasquerade(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		for _, proto := range []byte{tcp, udp} {
			ports := map[string]bool{}
			for i, wire := range h.pods {
				pod, server := h.addrs[i]+":1000", h.remote+":80"
				there := packet{from: pod, to: server, proto: proto, flags: syn, seq: 7}
				wire.send(t, there)
				there.from = f.snat + ":0"
				from := h.outside.want(t, withTTL(there, hops))
				ports[from] = true
				back := packet{from: server, to: from, proto: proto, flags: syn | ack, seq: 1000, ack: 8}
				h.outside.send(t, back)
				back.to = pod
				wire.want(t, withTTL(back, hops))
				for _, flags := range []byte{ack, ack, ack | fin} {
					there := packet{from: pod, to: server, proto: proto, flags: flags, seq: 8, ack: 1001, payload: 900}
					wire.send(t, there)
					there.from = from
					h.outside.want(t, withTTL(there, hops))
					back := packet{from: server, to: from, proto: proto, flags: flags, seq: 1001, ack: 9, payload: 1400}
					h.outside.send(t, back)
					back.to = pod
					wire.want(t, withTTL(back, hops))
				}
			}
			if len(ports) != len(h.pods) {
				t.Errorf("two pods got %v", ports)
			}
			for port := range ports {
				if n := netip.MustParseAddrPort(port).Port(); n < 61008 || n > 61015 {
					t.Errorf("port %d is not in the range for pods", n)
				}
			}
		}
		if open, half := h.rows(t); open != 8 || half != 0 {
			t.Errorf("%d rows are established and %d half open, want 8 and 0", open, half)
		}
	})
}

// A pod's flow to the outside and a client's flow to a backend there never share a port: the other
// node may be about to choose the same backend for the pod's flow, and must tell their answers
// apart.
func TestPortsApart(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		h.outside.reach(t, f.client, true)
		for i := range 16 {
			frontend, backend := addrPort(f.node, 30000+i), addrPort(h.remote, 8000+i)
			h.service(t, addrPort(f.any, 30000+i), udp, maps.NodePort, backend, false)
			h.outside.send(t, packet{from: f.client + ":4000", to: frontend, proto: udp})
			client := h.outside.want(t, packet{from: f.snat + ":0", to: backend, proto: udp, ttl: hops})
			h.pods[0].send(t, packet{from: h.addrs[0] + ":4000", to: addrPort(h.remote, 9000+i), proto: udp})
			pod := h.outside.want(t, packet{from: f.snat + ":0", to: addrPort(h.remote, 9000+i), proto: udp, ttl: hops})
			if n := netip.MustParseAddrPort(client).Port(); n < 61000 || n > 61007 {
				t.Errorf("a client was given %s, which is for pods", client)
			}
			if n := netip.MustParseAddrPort(pod).Port(); n < 61008 || n > 61015 {
				t.Errorf("a pod was given %s, which is for clients", pod)
			}
		}
	})
}

// Native networks get packets unchanged; so does a host that addresses a pod by the pod's own
// address.
func TestNoMasquerade(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		for _, proto := range []byte{tcp, udp} {
			for _, flags := range []byte{syn | ack, ack} {
				in := packet{from: h.remote + ":4000", to: h.addrs[0] + ":80", proto: proto, flags: ack}
				h.outside.send(t, in)
				h.pods[0].want(t, withTTL(in, hops))
				out := packet{from: h.addrs[0] + ":80", to: h.remote + ":4000", proto: proto, flags: flags}
				h.pods[0].send(t, out)
				h.outside.want(t, withTTL(out, hops))
			}
		}
		h.native(t, host(h.remote)+map[bool]string{true: "/32", false: "/128"}[!strings.Contains(h.remote, "[")])
		for _, proto := range []byte{tcp, udp} {
			out := packet{from: h.addrs[0] + ":81", to: h.remote + ":4001", proto: proto, flags: syn}
			h.pods[0].send(t, out)
			h.outside.want(t, withTTL(out, hops))
		}
		if open, _ := h.rows(t); open != 0 {
			t.Errorf("%d rows are established, want none", open)
		}
	})
}

// echo sends a ping and returns its identifier as it comes out at the other side.
func (w *wire) echo(t *testing.T, m message) {
	t.Helper()
	frame := m.bytes()
	copy(frame, w.macs(true))
	if _, err := w.socket.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// icmp returns the next ICMP frame of that type that comes out.
func (w *wire) icmp(t *testing.T, kind byte) []byte {
	t.Helper()
	if err := w.socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 65536); ; {
		n, err := w.socket.Read(frame)
		if err != nil {
			t.Fatalf("nothing of kind %d came out: %v; counted: %v", kind, err, w.router.reasons(t))
		}
		at := 14 + 20
		if frame[12] == 0x86 {
			at = 14 + 40
		} else if frame[14+9] != 1 {
			continue
		}
		if n > at && frame[at] == kind && bytes.HasPrefix(frame, w.end.Attrs().HardwareAddr) && (frame[12] != 0x86 || frame[14+6] == 58) {
			return bytes.Clone(frame[:n])
		}
	}
}

// A ping to the outside is answered, whatever its identifier: two pods may use the same one.
func TestMasqueradeEcho(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		k := f.kinds()
		numbers := map[uint16]bool{}
		at := 14 + 20 + 4
		if f.any == "[::]" {
			at = 14 + 40 + 4
		}
		for range 3 {
			for i, wire := range h.pods {
				m := message{from: host(h.addrs[i]), to: host(h.remote), kind: k.echo, rest: 77<<16 | 1, body: []byte("are you there?"), ttl: 64}
				wire.echo(t, m)
				out := h.outside.icmp(t, k.echo)
				number := binary.BigEndian.Uint16(out[at:])
				numbers[number] = true
				m.from, m.rest, m.ttl = host(f.snat), uint32(number)<<16|1, hops
				want := m.bytes()
				copy(want, h.outside.macs(false))
				if !bytes.Equal(out, want) {
					t.Fatalf("have  %x\nwant  %x", out, want)
				}
				m = message{from: host(h.remote), to: host(f.snat), kind: k.reply, rest: m.rest, body: m.body, ttl: 64}
				h.outside.echo(t, m)
				in := wire.icmp(t, k.reply)
				m.to, m.rest, m.ttl = host(h.addrs[i]), 77<<16|1, hops
				want = m.bytes()
				copy(want, wire.macs(false))
				if !bytes.Equal(in, want) {
					t.Fatalf("have  %x\nwant  %x", in, want)
				}
			}
		}
		if len(numbers) != 2 {
			t.Errorf("two pods had %v", numbers)
		}
	})
}

// An error about what a pod sent to the outside reaches the pod, quoting the packet as the pod sent
// it.
func TestMasqueradeErrors(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		k := f.kinds()
		sent := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: udp}
		h.pods[0].send(t, sent)
		left := sent
		left.from = f.snat + ":0"
		left.from = h.outside.want(t, withTTL(left, hops))
		router := host(f.client)
		for _, kind := range []byte{k.unreachable, k.tooBig, k.expired} {
			m := message{from: router, to: host(f.snat), kind: kind, code: map[bool]byte{true: 4}[kind == k.tooBig && k.tooBig == 3],
				rest: 1400, body: quoted(left, 8), ttl: 64}
			h.outside.echo(t, m)
			in := h.pods[0].icmp(t, kind)
			m.to, m.body, m.ttl = host(h.addrs[0]), quoted(sent, 8), hops
			want := m.bytes()
			copy(want, h.pods[0].macs(false))
			if !bytes.Equal(in, want) {
				t.Fatalf("have  %x\nwant  %x", in, want)
			}
		}
		// The pod's own error about an answer reaches the sender too.
		answer := packet{from: h.remote + ":80", to: left.from, proto: udp}
		h.outside.send(t, answer)
		got := answer
		got.to = sent.from
		h.pods[0].want(t, withTTL(got, hops))
		m := message{from: host(h.addrs[0]), to: host(h.remote), kind: k.unreachable, code: k.port, body: quoted(got, 8), ttl: 64}
		h.pods[0].echo(t, m)
		out := h.outside.icmp(t, k.unreachable)
		m.from, m.body, m.ttl = host(f.snat), quoted(answer, 8), hops
		want := m.bytes()
		copy(want, h.outside.macs(false))
		if !bytes.Equal(out, want) {
			t.Fatalf("have  %x\nwant  %x", out, want)
		}
	})
}

// Protocols without ports cannot share the node's address; and no host outside gets at a pod's row
// by sending as the pod.
func TestMasqueradeHostile(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		frame := datagram{from: host(h.addrs[0]), to: host(h.remote), proto: 47, payload: make([]byte, 40)}.bytes()
		copy(frame, h.pods[0].macs(true))
		if _, err := h.pods[0].socket.Write(frame); err != nil {
			t.Fatal(err)
		}
		sent := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: tcp, flags: syn, seq: 7}
		h.pods[0].send(t, sent)
		left := sent
		left.from = f.snat + ":0"
		left.from = h.outside.want(t, withTTL(left, hops)) // and nothing before it
		if n := h.counted(t, "no-ports"); n != 1 {
			t.Errorf("no-ports was counted %d times, want once", n)
		}
		rows := h.dump(t)
		forged := sent
		forged.flags = rst
		h.outside.send(t, forged)
		answer := packet{from: h.remote + ":80", to: left.from, proto: tcp, flags: syn | ack, seq: 1000, ack: 8}
		h.outside.send(t, answer)
		answer.to = sent.from
		h.pods[0].want(t, withTTL(answer, hops))
		if after := h.dump(t); len(after) != len(rows) {
			t.Errorf("%d rows before a forged reset, %d after it", len(rows), len(after))
		}
	})
}

// A fragmented datagram leaves with one address, and its answer comes back.
func TestMasqueradeFragments(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		whole := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: udp}
		h.pods[0].send(t, whole)
		whole.from = f.snat + ":0"
		from := h.outside.want(t, withTTL(whole, hops))
		first := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: udp, fragment: 0x2000, payload: 800}
		h.pods[0].send(t, first)
		first.from = from
		h.outside.want(t, withTTL(first, hops))
		later := datagram{from: host(h.addrs[0]), to: host(h.remote), proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
		h.pods[0].later(t, later)
		later.from, later.ttl = host(f.snat), hops
		h.outside.wantLater(t, later)
		back := packet{from: h.remote + ":80", to: from, proto: udp, fragment: 0x2000, payload: 800}
		h.outside.send(t, back)
		back.to = h.addrs[0] + ":1000"
		h.pods[0].want(t, withTTL(back, hops))
		later = datagram{from: host(h.remote), to: host(f.snat), proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
		h.outside.later(t, later)
		later.to, later.ttl = host(h.addrs[0]), hops
		h.pods[0].wantLater(t, later)
	})
}

func (w *wire) later(t *testing.T, d datagram) {
	t.Helper()
	frame := d.bytes()
	copy(frame, w.macs(true))
	if _, err := w.socket.Write(frame); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) wantLater(t *testing.T, d datagram) {
	t.Helper()
	frame, want := w.next(t, 5*time.Second), d.bytes()
	copy(want, w.macs(false))
	if !bytes.Equal(frame, want) {
		t.Fatalf("have  %x\nwant  %x", frame, want)
	}
}
