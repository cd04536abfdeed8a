package bpf

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// split cuts a datagram into fragments with at most size bytes of payload each, a multiple of
// eight.
func split(d datagram, size int, id uint32) []datagram {
	var list []datagram
	for at := 0; at < len(d.payload); at += size {
		part := d
		part.id, part.fragment = id, uint16(at/8)
		if at+size < len(d.payload) {
			part.fragment |= 0x2000
		}
		part.payload = d.payload[at:min(at+size, len(d.payload))]
		list = append(list, part)
	}
	return list
}

// passes runs a fragment and checks the fragment that goes on.
func (w *bareNode) passes(t *testing.T, name, program string, in, want datagram) {
	t.Helper()
	verdict, out := w.run(t, program, in.bytes())
	if verdict != "pass" {
		t.Errorf("%s: %s; counted: %v", name, verdict, w.reasons(t))
	} else if diff := cmp.Diff(want.bytes(), out); diff != "" {
		t.Errorf("%s (-want +have):\n%s", name, diff)
	}
}

// orders are the orders in which four fragments come, with the first one ahead.
var orders = [][]int{{0, 1, 2, 3}, {0, 3, 2, 1}, {0, 2, 1, 3, 2}, {0, 0, 1, 3}}

// The later fragments of a datagram go where the first goes, in whatever order: half open and
// established, in both directions, with checksums and without.
func TestFragments(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.sumUp(t, true)
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		id := uint32(100)
		for range 3 {
			for _, order := range orders {
				id++
				in, want := split(udpTo(client, node, 3000), 800, id), split(udpTo(client, pod, 3000), 800, id)
				for _, i := range order {
					w.passes(t, "request", w.in, in[i], want[i])
				}
				if w.out == "" {
					continue
				}
				in, want = split(udpTo(pod, client, 3000), 800, id), split(udpTo(node, client, 3000), 800, id)
				for _, i := range order {
					w.passes(t, "answer", w.out, in[i], want[i])
				}
			}
		}
	})
}

// The same for a backend on another node, whose replies come in.
func TestRemoteFragments(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.sumUp(t, true)
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", false)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		_, out := w.run(t, w.in, packet{from: client, to: node, proto: udp}.bytes())
		snat := f.snat + ":" + portOf(out, f)
		for id, order := range orders {
			in, want := split(udpTo(client, node, 2001), 504, uint32(id)), split(udpTo(snat, pod, 2001), 504, uint32(id))
			for _, i := range order {
				w.passes(t, "request", w.in, in[i], want[i])
			}
			in, want = split(udpTo(pod, snat, 2001), 504, uint32(id)), split(udpTo(node, client, 2001), 504, uint32(id))
			for _, i := range order {
				w.passes(t, "answer", w.in, in[i], want[i])
			}
		}
	})
}

// Fragments of unknown datagrams pass unchanged, and so do those of a datagram long past, of
// another protocol or between other hosts. None of them creates a flow.
func TestStrayFragments(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		w.service(t, f.any+":30054", udp, maps.NodePort, "", true)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		in, want := split(udpTo(client, node, 3000), 800, 7), split(udpTo(client, pod, 3000), 800, 7)
		early := in[1]
		early.id = 6
		w.passes(t, "before the first", w.in, early, early)
		if open, half := w.rows(t); open+half != 0 {
			t.Errorf("%d flows are open and %d half", open, half)
		}
		w.passes(t, "first", w.in, in[0], want[0])
		w.passes(t, "second", w.in, in[1], want[1])
		before := w.dump(t)
		for name, change := range map[string]func(*datagram){
			"another datagram": func(d *datagram) { d.id++ },
			"another client":   func(d *datagram) { d.from = host(f.snat) },
			"another address":  func(d *datagram) { d.to = host(f.vip) },
			"refused":          func(d *datagram) { d.id = 8 },
		} {
			refused := split(udpTo(f.client+":4000", f.node+":30054", 3000), 800, 8)
			w.answered(t, "refused", "no-backend", refused[0].bytes(), nil)
			stray := in[1]
			change(&stray)
			w.passes(t, name, w.in, stray, stray)
		}
		if diff := cmp.Diff(before, w.dump(t)); diff != "" {
			t.Errorf("fragments have changed flows (-before +after):\n%s", diff)
		}
		w.age(t, 31)
		w.passes(t, "too late", w.in, in[2], in[2])
	})
}

// age makes every datagram older.
func (w *bareNode) age(t *testing.T, ticks uint32) {
	t.Helper()
	var key bpf.MapsDatagram
	var value bpf.MapsDatagramFlow
	for rows := w.maps.Frags.Iterate(); rows.Next(&key, &value); {
		value.Seen -= ticks
		if err := w.maps.Frags.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
}

// A first fragment that ends within the TCP header has no checksum that could be updated: if it is
// for a service it is dropped, otherwise it is left to the stack.
func TestTinyFragments(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		segment := func(to string) []byte {
			return packet{from: f.client + ":4000", to: to, proto: tcp, flags: syn}.bytes()
		}
		for n := 8; n < 20; n += 4 {
			ours, other := segment(f.node+":30080"), segment(f.node+":22")
			l4 := len(ours) - 25
			d := datagram{from: host(f.client), to: host(f.node), proto: tcp, fragment: 0x2000, id: 9, payload: ours[l4:][:n]}
			w.answered(t, "ours", "fragment", d.bytes(), nil)
			d.payload = other[l4:][:n]
			if verdict, out := w.run(t, w.in, d.bytes()); verdict != "pass" || !bytes.Equal(out, d.bytes()) {
				t.Errorf("another's: %s, %x", verdict, out)
			}
		}
		if open, half := w.rows(t); open+half != 0 {
			t.Errorf("%d flows are open and %d half", open, half)
		}
	})
}

// A row that was overwritten for another flow while it was read says nothing, not even where its
// packets are translated: packets without ports are then dropped like those with ports.
func TestTornWithoutPorts(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		tear := func(flow bpf.MapsFlow, flags uint8) {
			t.Helper()
			row, ok, err := maps.LookupFlow(w.maps.CtPending, flow)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			row.Kind ^= flags
			row.Checksum++
			if err := w.maps.CtPending.Put(&flow, &row); err != nil {
				t.Fatal(err)
			}
		}
		drops := func(what, program string, frame []byte) {
			t.Helper()
			before := w.counted(t, "flow-race")
			if verdict, _ := w.run(t, program, frame); verdict != "drop" || w.counted(t, "flow-race") != before+1 {
				t.Errorf("%s: %s; counted: %v", what, verdict, w.reasons(t))
			}
		}
		there, back := split(udpTo(client, node, 3000), 800, 7), split(udpTo(pod, client, 3000), 800, 8)
		w.run(t, w.in, there[0].bytes())
		answer, request := packet{from: pod, to: client, proto: udp}, packet{from: client, to: node, proto: udp}
		aboutAnswer := message{from: host(f.client), to: host(f.node), kind: f.kinds().unreachable, body: quoted(packet{from: node, to: client, proto: udp}, 8), ttl: 64}
		if w.out != "" {
			w.run(t, w.out, back[0].bytes())
			reply := flowOf(pod, client, udp)
			tear(reply, maps.FlowReply)
			drops("answer", w.out, answer.bytes())
			drops("fragment of an answer", w.out, back[1].bytes())
			aboutRequest := message{from: host(f.pod), to: host(f.client), kind: f.kinds().unreachable, body: quoted(packet{from: client, to: pod, proto: udp}, 8), ttl: 64}
			drops("error about a request", w.out, aboutRequest.bytes())
		}
		tear(flowOf(client, node, udp), uint8(maps.FlowPod))
		drops("request", w.in, request.bytes())
		drops("fragment of a request", w.in, there[1].bytes())
		drops("error about an answer", w.in, aboutAnswer.bytes())
	})
}
