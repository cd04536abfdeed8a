package bpf

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// IPv4-mapped IPv6 addresses never appear on the wire. A packet with such addresses must not pass
// for an IPv4 packet, whose rows have the same keys.
func TestMappedAddresses(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		for _, s := range []step{
			{name: "the source", in: packet{from: "[::ffff:198.51.100.7]:4000", to: "[2001:db8::1]:30080", proto: tcp, flags: syn}},
			{name: "the destination", in: packet{from: "[2001:db8:1::7]:4000", to: "[::ffff:192.0.2.1]:30080", proto: tcp, flags: syn}},
			{name: "both", in: packet{from: "[::ffff:198.51.100.7]:4000", to: "[::ffff:192.0.2.1]:30080", proto: tcp, flags: syn}},
		} {
			w.step(t, s)
		}
		w.expectRows(t, 0, 0)
	})
}

// Link-layer multicast and broadcast frames are not forwarded, whatever IP address they contain.
func TestGroups(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}
		for name, mac := range map[string]string{"a group": "\x01\x00\x5e\x00\x00\x01", "all": "\xff\xff\xff\xff\xff\xff"} {
			p.macs = mac + "\x02\x00\x00\x00\x00\x01"
			w.step(t, step{name: name, in: p})
		}
		w.expectRows(t, 0, 0)
	})
}

// Padding after a packet is not part of what an error quotes.
func TestQuoteBeforePadding(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		client, node, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
		came, left := packet{from: client, to: node, proto: tcp, flags: syn}, packet{from: client, to: pod, proto: tcp, flags: syn}
		w.step(t, step{name: "request", in: came, want: left})
		for _, l4 := range []int{2, 8, 16, 18, 20} {
			in := message{from: host(f.pod), to: host(f.client), kind: f.kinds().unreachable, body: quoted(left, l4)}
			want := in
			if want.from, want.body = host(f.node), quoted(came, l4); l4 < 8 {
				want = in // without ports it belongs to no flow
			}
			padding := make([]byte, 24)
			verdict, out := w.run(t, w.in, append(in.bytes(), padding...))
			if diff := cmp.Diff(append(want.bytes(), padding...), out); verdict != "pass" || diff != "" {
				t.Errorf("%d bytes beyond the quoted header of IP: %s (-want +have):\n%s", l4, verdict, diff)
			}
		}
	})
}

// A client whose first acknowledgment got lost may establish a flow with its FIN.
func TestEstablishedByItsEnd(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		l := w.dial(t, f, f.client+":4000", f.node+":30080", f.pod+":8080")
		l.reply(t, "answer", syn|ack, 1000)
		l.request(t, "acknowledgment and end", fin|ack, 1001)
		w.expectRows(t, 2, 0)
		if row, ok := w.row(t, l.client, l.vip, tcp); !ok || row.State != uint8(bpf.MapsCtStateCT_CLOSING) {
			t.Errorf("the client's direction is in state %d (%v), want %d", row.State, ok, bpf.MapsCtStateCT_CLOSING)
		}
	})
}
