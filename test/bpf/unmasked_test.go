package bpf

import (
	"bytes"
	"testing"
	"time"

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
			t.Fatalf("%x does not come out: %v; counted: %v", want, err, from.site.reasons(t))
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
				h := newHouseOf(t, f, config)
				h.outside.reach(t, h.world, true)
				for _, proto := range []byte{tcp, udp} {
					out := packet{from: h.addrs[0] + ":1000", to: h.world + ":80", proto: proto, flags: syn}
					h.pods[0].send(t, out)
					h.outside.want(t, withTTL(out, 63))
					in := packet{from: h.world + ":80", to: h.addrs[0] + ":1000", proto: proto, flags: syn | ack}
					h.outside.send(t, in)
					h.pods[0].want(t, withTTL(in, 63))
				}
				k := f.kinds()
				m := message{from: host(h.addrs[0]), to: host(h.world), kind: k.echo, rest: 77<<16 | 1, body: []byte("are you there?"), ttl: 64}
				h.pods[0].echo(t, m)
				m.ttl = 63
				if out, want := h.outside.icmp(t, k.echo), m.bytes(); !bytes.Equal(out[14:], want[14:]) {
					t.Errorf("have  %x\nwant  %x", out, want)
				}
				passes(t, h.pods[0], h.outside, datagram{from: host(h.addrs[0]), to: host(h.world), proto: 47, payload: make([]byte, 40), ttl: 64})
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
	masked(t, func(t *testing.T, h *house, f family, _ byte) {
		side := h.wire(t, "side")
		side.reach(t, f.client, true)
		for _, proto := range []byte{tcp, udp} {
			p := packet{from: f.client + ":1000", to: h.world + ":80", proto: proto, flags: syn}
			side.send(t, p)
			h.outside.want(t, withTTL(p, 63))
		}
		passes(t, side, h.outside, datagram{from: host(f.client), to: host(h.world), proto: 47, payload: make([]byte, 40), ttl: 64})
		h.native(t, host(h.world)+map[bool]string{true: "/32", false: "/128"}[f.any != "[::]"])
		passes(t, h.pods[0], h.outside, datagram{from: host(h.addrs[0]), to: host(h.world), proto: 47, payload: make([]byte, 40), ttl: 64})
		if open, half := h.rows(t); open+half > 0 {
			t.Errorf("%d rows are established and %d half open, want none", open, half)
		}
	})
}

// A host that keeps sending datagrams to a pod keeps getting answers from the pod's address: its
// row is as recent as the last of them, and there is only one.
func TestMasqueradeExpectsOn(t *testing.T) {
	masked(t, func(t *testing.T, h *house, f family, hops byte) {
		in := packet{from: h.world + ":4000", to: h.addrs[0] + ":80", proto: udp}
		key := flowOf(h.addrs[0]+":80", h.world+":4000", udp)
		row := func() (row bpf.MapsCtEntry) {
			t.Helper()
			h.outside.send(t, in)
			h.pods[0].want(t, withTTL(in, hops))
			if err := h.maps.CtHalf.Lookup(&key, &row); err != nil {
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
		h.plant(t, h.maps.CtHalf, key, old)
		if again := row(); int32(again.Seen-first.Seen) < 0 {
			t.Errorf("it was seen in tick %d, and then in %d", first.Seen, again.Seen)
		}
		if open, half := h.rows(t); open != 0 || half != 1 {
			t.Errorf("%d rows are established and %d half open, want only one", open, half)
		}
	})
}
