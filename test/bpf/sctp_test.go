package bpf

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
)

// An association with a backend on another node is established by the tag that the backend asked
// for, and by nothing else.
func TestRemoteSCTP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", sctp, maps.NodePort, f.pod+":8080", false)
		client, node, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
		_, out := w.run(t, w.in, packet{from: client, to: node, proto: sctp, flags: syn, seq: 77}.bytes())
		snat := f.snat + ":" + portOf(out, f)
		request := func(name string, flags byte, tag uint32) {
			t.Helper()
			w.step(t, step{name: name, in: packet{from: client, to: node, proto: sctp, flags: flags, ack: tag},
				want: packet{from: snat, to: pod, proto: sctp, flags: flags, ack: tag}})
		}
		reply := func(name string, flags byte, wanted uint32) {
			t.Helper()
			w.step(t, step{name: name, in: packet{from: pod, to: snat, proto: sctp, flags: flags, seq: wanted, ack: 77},
				want: packet{from: node, to: client, proto: sctp, flags: flags, seq: wanted, ack: 77}})
		}
		request("the same again", syn, 0)
		request("a guess", ack, 1000)
		w.expectRows(t, 0, 2)
		reply("answer", syn|ack, 1000)
		for _, guess := range []uint32{0, 1, 999, 1001, 1000 << 16} {
			request("another guess", ack, guess)
		}
		request("aborted by somebody else", rst, 999)
		w.expectRows(t, 0, 0)
		request("once more", syn, 0)
		reply("answer", syn|ack, 1000)
		request("what was asked for", ack, 1000)
		w.expectRows(t, 2, 0)
		request("on it goes", ack, 1000)
		reply("both ways", ack, 0)
		request("the end", fin, 1000)
		reply("of both", fin, 0)
		w.expectRows(t, 2, 0)
		if n := w.doom(t, maps.DoomIdle, &maps.FlowLimits{{9, 9, 9, 9, 9}, {9, 9, 9, 9, 9}, {9, 9, 0, 9, 9}}); n != 1 {
			t.Errorf("%d ended associations were forgotten, want 1", n)
		}
	})
}

// An association older than the programs' memory goes on.
func TestOldSCTP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", sctp, maps.NodePort, f.pod+":30080", true)
		client, node, pod := f.client+":4000", f.node+":30080", f.pod+":30080"
		w.step(t, step{name: "data", in: packet{from: client, to: node, proto: sctp, ack: 5},
			want: packet{from: client, to: pod, proto: sctp, ack: 5}})
		w.step(t, step{name: "answer", leaving: true, in: packet{from: pod, to: client, proto: sctp, ack: 6},
			want: packet{from: node, to: client, proto: sctp, ack: 6}})
		w.step(t, step{name: "more", in: packet{from: client, to: node, proto: sctp, ack: 5},
			want: packet{from: client, to: pod, proto: sctp, ack: 5}})
		if w.out != "" {
			w.expectRows(t, 2, 0)
		}
	})
}

// The checksum is right whatever the packet's length, and zero stays zero. The frames are
// truncated, because the kernel accepts no test packets that long: the programs do not read what
// follows the header.
func TestSumsOfSCTP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", sctp, maps.NodePort, f.pod+":8080", true)
		in := packet{from: f.client + ":4000", to: f.node + ":30080", proto: sctp, flags: syn}
		want := in
		want.to = f.pod + ":8080"
		for n := 1; n < 65536-100; n++ {
			// One hook and family see every length that fits a link, the others a sample.
			if n > 9000 && n%251 > 0 || n%13 > 0 && (w.out == "" || f.any != "0.0.0.0") {
				continue
			}
			in.payload, want.payload = n, n
			frame, expected := in.bytes(), want.bytes()
			seen := min(len(frame), 128)
			verdict, out := w.run(t, w.in, frame[:seen])
			if verdict != "pass" || cmp.Diff(expected[:seen], out) != "" {
				t.Fatalf("with %d bytes: %s\nhave %x\nwant %x", n, verdict, out, expected[:seen])
			}
		}
		in.payload, in.noSum = 100, true
		want.payload, want.noSum = 100, true
		w.step(t, step{name: "without a sum", in: in, want: want})
	})
}

// The checksum of a fragmented datagram depends on later fragments, so the first one is translated
// only if its ports stay the same.
func TestFragmentsOfSCTP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", sctp, maps.NodePort, f.pod+":8080", true)
		w.service(t, f.vip+":8080", sctp, maps.ExternalIP, f.pod+":8080", true)
		first := func(from, to string) datagram {
			d := udpTo(from, to, 1504)
			d.proto, d.fragment, d.id = sctp, 0x2000, 9
			return d
		}
		w.answered(t, "to another port", "fragment", first(f.client+":4000", f.node+":30080").bytes(), nil)
		in, want := first(f.client+":4001", f.vip+":8080"), first(f.client+":4001", f.pod+":8080")
		copy(want.payload, in.payload)
		w.passes(t, "to the same port", w.in, in, want)
		in.fragment, want.fragment = 188, 188
		w.passes(t, "what follows", w.in, in, want)
	})
}
