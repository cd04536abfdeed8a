package bpf

import (
	"bytes"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

// passes sends a frame without ports into one wire and expects it out of another, unchanged except
// for link addresses and one hop.
func passes(t *testing.T, from, to *wire, d datagram) {
	t.Helper()
	frame := d.bytes()
	copy(frame, from.macs(true))
	if _, err := from.socket.Write(frame); err != nil {
		t.Fatal(err)
	}
	d.ttl = 63
	want := d.bytes()
	if err := to.socket.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
		t.Fatal(err)
	}
	for got := make([]byte, 65536); ; {
		n, err := to.socket.Read(got)
		if err != nil {
			t.Fatalf("%x does not come out: %v; counted: %v", want, err, from.router.reasons(t))
		}
		if n == len(want) && bytes.Equal(got[14:n], want[14:]) {
			return
		}
	}
}

// Where pods do not share the node's address, all that they send leaves unchanged, and the programs
// remember nothing of it nor of who sends to them.
func TestMasqueradeOff(t *testing.T) {
	rig.Root(t)
	for name, f := range families() {
		for _, bypass := range []uint32{0, 1} {
			t.Run(name+map[uint32]string{0: " by the stack", 1: " past it"}[bypass], func(t *testing.T) {
				t.Parallel()
				config := standardConfig()
				config.Bypass = bypass
				h := newRouterTwoPodsOf(t, f, config)
				h.outside.reach(t, h.remote, true)
				for _, proto := range []byte{tcp, udp} {
					out := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: proto, flags: syn}
					h.pods[0].send(t, out)
					h.outside.want(t, withTTL(out, 63))
					in := packet{from: h.remote + ":80", to: h.addrs[0] + ":1000", proto: proto, flags: syn | ack}
					h.outside.send(t, in)
					h.pods[0].want(t, withTTL(in, 63))
				}
				k := f.kinds()
				m := message{from: host(h.addrs[0]), to: host(h.remote), kind: k.echo, rest: 77<<16 | 1, body: []byte("are you there?"), ttl: 64}
				h.pods[0].echo(t, m)
				m.ttl = 63
				if out, want := h.outside.icmp(t, k.echo), m.bytes(); !bytes.Equal(out[14:], want[14:]) {
					t.Errorf("have  %x\nwant  %x", out, want)
				}
				passes(t, h.pods[0], h.outside, datagram{from: host(h.addrs[0]), to: host(h.remote), proto: 47, payload: make([]byte, 40), ttl: 64})
				if open, half := h.rows(t); open+half > 0 {
					t.Errorf("%d rows are established and %d half open, want none", open, half)
				}
			})
		}
	}
}

// What leaves and is not a pod's keeps its address, whatever it is, and packets without ports pass
// unchanged to where pods are known.
func TestMasqueradeOfOthers(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, _ byte) {
		side := h.wire(t, "side")
		side.reach(t, f.client, true)
		for _, proto := range []byte{tcp, udp} {
			p := packet{from: f.client + ":1000", to: h.remote + ":80", proto: proto, flags: syn}
			side.send(t, p)
			h.outside.want(t, withTTL(p, 63))
		}
		passes(t, side, h.outside, datagram{from: host(f.client), to: host(h.remote), proto: 47, payload: make([]byte, 40), ttl: 64})
		h.native(t, host(h.remote)+map[bool]string{true: "/32", false: "/128"}[f.any != "[::]"])
		passes(t, h.pods[0], h.outside, datagram{from: host(h.addrs[0]), to: host(h.remote), proto: 47, payload: make([]byte, 40), ttl: 64})
		if open, half := h.rows(t); open+half > 0 {
			t.Errorf("%d rows are established and %d half open, want none", open, half)
		}
	})
}

// A host that keeps sending datagrams to a pod keeps getting answers from the pod's address: its
// row is as recent as the last of them, and there is only one.
func TestMasqueradeExpectsOn(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		in := packet{from: h.remote + ":4000", to: h.addrs[0] + ":80", proto: udp}
		key := flowOf(h.addrs[0]+":80", h.remote+":4000", udp)
		row := func() (row bpf.MapsCtEntry) {
			t.Helper()
			h.outside.send(t, in)
			h.pods[0].want(t, withTTL(in, hops))
			if err := h.maps.CtPending.Lookup(&key, &row); err != nil {
				t.Fatalf("there is no row for the host that sent to the pod: %v", err)
			}
			return row
		}
		first := row()
		if first.Ifindex != 0 {
			t.Errorf("the row has a way, through device %d", first.Ifindex)
		}
		old := first
		old.Seen -= 100
		h.plant(t, h.maps.CtPending, key, old)
		if again := row(); int32(again.Seen-first.Seen) < 0 {
			t.Errorf("it was seen in tick %d, and then in %d", first.Seen, again.Seen)
		}
		if open, half := h.rows(t); open != 0 || half != 1 {
			t.Errorf("%d rows are established and %d half open, want only one", open, half)
		}
	})
}

// forgetAll deletes every row, as an eviction, an expiry or a lost map would.
func (h *routerTwoPods) forgetAll(t *testing.T) {
	t.Helper()
	for _, m := range []*ebpf.Map{h.maps.Ct, h.maps.CtPending} {
		var keys []bpf.MapsFlow
		var key bpf.MapsFlow
		row := make([]byte, m.ValueSize())
		list := m.Iterate()
		for list.Next(&key, &row) {
			keys = append(keys, key)
		}
		if err := list.Err(); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if err := m.Delete(&key); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Whatever a pod sends to the outside in a connection whose rows are gone has the node's address. The
// connection gets the port that it had, and goes on.
func TestMasqueradeWithoutRows(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		pod, server := h.addrs[0]+":1000", h.remote+":80"
		there := packet{from: pod, to: server, proto: tcp, flags: syn, seq: 7}
		h.pods[0].send(t, there)
		there.from = f.snat + ":0"
		from := h.outside.want(t, withTTL(there, hops))
		for _, flags := range []byte{ack, syn | ack, ack | fin, rst, rst | ack} {
			h.forgetAll(t)
			there := packet{from: pod, to: server, proto: tcp, flags: flags, seq: 8, ack: 1001, payload: 900}
			h.pods[0].send(t, there)
			there.from = f.snat + ":0"
			if is := h.outside.want(t, withTTL(there, hops)); is != from {
				t.Errorf("flags %#x: it had the port of %s, and then that of %s", flags, from, is)
			}
		}
		h.forgetAll(t)
		there = packet{from: pod, to: server, proto: tcp, flags: ack, seq: 8, ack: 1001, payload: 900}
		h.pods[0].send(t, there)
		there.from = from
		h.outside.want(t, withTTL(there, hops))
		back := packet{from: server, to: from, proto: tcp, flags: ack, seq: 1001, ack: 908, payload: 1400}
		h.outside.send(t, back)
		back.to = pod
		h.pods[0].want(t, withTTL(back, hops))
		there = packet{from: pod, to: server, proto: tcp, flags: ack, seq: 908, ack: 2401}
		h.pods[0].send(t, there)
		there.from = from
		h.outside.want(t, withTTL(there, hops))
		if open, half := h.rows(t); open != 2 || half != 0 {
			t.Errorf("%d rows are established and %d half open, want 2 and 0", open, half)
		}
	})
}

// A connection that a host outside opened to a pod's own address keeps that address, from the first
// reply to the last, whatever becomes of the rows of connections that are not established.
func TestMasqueradeAdmits(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, _ family, hops byte) {
		client, pod := h.remote+":4000", h.addrs[0]+":80"
		in := func(flags byte, seq, ack uint32) {
			t.Helper()
			p := packet{from: client, to: pod, proto: tcp, flags: flags, seq: seq, ack: ack}
			h.outside.send(t, p)
			h.pods[0].want(t, withTTL(p, hops))
		}
		out := func(flags byte, seq, ack uint32) {
			t.Helper()
			p := packet{from: pod, to: client, proto: tcp, flags: flags, seq: seq, ack: ack}
			h.pods[0].send(t, p)
			h.outside.want(t, withTTL(p, hops))
		}
		in(syn, 7, 0)
		out(syn|ack, 1000, 8)
		if open, half := h.rows(t); open != 0 || half != 2 {
			t.Errorf("%d rows are established and %d half open, want 0 and 2", open, half)
		}
		in(ack, 8, 1001)
		if open, half := h.rows(t); open != 2 || half != 0 {
			t.Errorf("%d rows are established and %d half open, want 2 and 0", open, half)
		}
		out(ack, 1001, 8)
		in(ack, 8, 1001)
		// Its rows are gone, and its client speaks first.
		h.forgetAll(t)
		in(ack, 8, 1001)
		out(ack, 1001, 8)
		in(ack, 8, 1001)
		if open, half := h.rows(t); open != 2 || half != 0 {
			t.Errorf("%d rows are established and %d half open, want 2 and 0", open, half)
		}
		out(ack|fin, 1001, 8)
		in(ack|fin, 8, 1002)
		out(ack, 1002, 9)
	})
}

// A host that sends to a pod's port does not get the pod to show its address when the pod dials from
// that port: what opens a connection is no reply.
func TestMasqueradeLured(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		for i, flags := range []byte{syn, ack, syn | ack, rst} {
			pod, server := addrPort(h.addrs[0], 1000+i), h.remote+":80"
			lure := packet{from: server, to: pod, proto: tcp, flags: flags}
			h.outside.send(t, lure)
			h.pods[0].want(t, withTTL(lure, hops))
			there := packet{from: pod, to: server, proto: tcp, flags: syn, seq: 7}
			h.pods[0].send(t, there)
			there.from = f.snat + ":0"
			from := h.outside.want(t, withTTL(there, hops))
			back := packet{from: server, to: from, proto: tcp, flags: syn | ack, seq: 1000, ack: 8}
			h.outside.send(t, back)
			back.to = pod
			h.pods[0].want(t, withTTL(back, hops))
			h.forgetAll(t)
		}
	})
}

// An ICMP error about a flow that is not known does not leave with a pod's address: a pod may have
// made it up, and the host outside knows no pod.
func TestMasqueradeStrayErrors(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		k := f.kinds()
		quote := packet{from: h.remote + ":80", to: f.snat + ":61000", proto: udp}
		h.pods[0].echo(t, message{from: host(h.addrs[0]), to: host(h.remote), kind: k.tooBig, code: map[bool]byte{true: 4}[k.tooBig == 3],
			rest: 1280, body: quoted(quote, 8), ttl: 64})
		if n := h.counted(t, "no-ports"); n != 1 {
			t.Errorf("no-ports was counted %d times, want once", n)
		}
	})
}
