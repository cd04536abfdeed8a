package bpf

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
)

// endOf returns the source of a packet without tags and options.
func endOf(frame []byte, f family) string {
	addr, at := netip.AddrFrom16([16]byte(frame[14+8:14+24])), 14+40
	if f.any == "0.0.0.0" {
		addr, at = netip.AddrFrom4([4]byte(frame[14+12:14+16])), 14+20
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(frame[at:])).String()
}

// One port of a client talks to three frontends at once that share a backend: each gets its own
// answers.
func TestSharedBackend(t *testing.T) {
	for _, proto := range []byte{tcp, udp, sctp} {
		for _, local := range []bool{false, true} {
			each(t, func(t *testing.T, w *bareNode, f family) { shareBackend(t, w, f, proto, local) })
		}
	}
}

func shareBackend(t *testing.T, w *bareNode, f family, proto byte, local bool) {
	t.Helper()
	client, pod := f.client+":4000", f.pod+":8080"
	vips := []string{f.vip + ":80", f.vip + ":81", f.node + ":30080"}
	w.service(t, vips[0], proto, maps.LoadBalancer, pod, local)
	w.service(t, vips[1], proto, maps.ExternalIP, pod, local)
	w.service(t, f.any+":30080", proto, maps.NodePort, pod, local)
	ends := map[string]string{}
	shown := uint32(1001)
	if proto == sctp {
		shown = 1000
	}
	for round, flags := range []byte{syn, ack, ack} {
		for _, vip := range vips {
			in := packet{from: client, to: vip, proto: proto, flags: flags, ack: shown}
			verdict, out := w.run(t, w.in, in.bytes())
			if verdict != "pass" {
				t.Fatalf("to %s: %s; counted: %v", vip, verdict, w.reasons(t))
			}
			end := endOf(out, f)
			if owner, ok := ends[end]; ok != (round > 0) || ok && owner != vip {
				t.Fatalf("round %d: the backend sees %s as %s, like %q", round, vip, end, owner)
			}
			ends[end] = vip
		}
		for end, vip := range ends {
			w.step(t, step{name: "answer", leaving: local, in: packet{from: pod, to: end, proto: proto, flags: flags | ack, seq: 1000},
				want: packet{from: vip, to: client, proto: proto, flags: flags | ack, seq: 1000}})
		}
	}
	if open, half := w.rows(t); (w.out != "" || !local) && (open != 6 || half != 0) {
		t.Errorf("%d rows are established and %d half open, want 6 and none", open, half)
	}
}

// shapes returns packets that differ in what surrounds their ports.
func shapes(f family) []packet {
	var list []packet
	for _, proto := range []byte{tcp, udp, sctp} {
		for _, size := range []int{1, 2, 3, 4, 5, 6, 7, 8, 536, 1399} {
			p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: proto, flags: syn, payload: size, whole: size%2 == 0}
			list = append(list, p)
			if more := size % 11; f.any == "0.0.0.0" {
				p.options = more
			} else {
				p.extension = make([]byte, 8*(more+1))
				p.extension[1] = byte(more)
				p.extension[2], p.extension[3] = 1, byte(8*(more+1)-4)
			}
			list = append(list, p)
		}
	}
	return list
}

// Whatever surrounds the ports, and wherever a packet ends: it comes out with the backend's
// address, or unchanged.
func TestShapes(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		w.service(t, f.any+":30080", udp, maps.NodePort, f.pod+":8080", true)
		w.service(t, f.any+":30080", sctp, maps.NodePort, f.pod+":8080", true)
		for _, p := range shapes(f) {
			want := p
			want.to = f.pod + ":8080"
			in, out := p.bytes(), want.bytes()
			stride, header := 1, len(in)-p.payload
			if p.proto == sctp {
				header -= 20 // a chunk, which may be missing
			}
			if p.payload > 8 {
				stride = 97
			}
			for n := w.shortest(f); n <= len(in); n += stride {
				expect := in[:n]
				if n >= header {
					expect = out[:n]
				}
				verdict, have := w.run(t, w.in, in[:n])
				if verdict != "pass" || cmp.Diff(expect, have) != "" {
					t.Fatalf("%+v cut to %d bytes: %s\nhave %x\nwant %x", p, n, verdict, have, expect)
				}
			}
			w.step(t, step{name: "whole", in: p, want: want})
		}
	})
}

// A UDP checksum that comes out as zero must not be written as zero, which means none.
func TestZeroSum(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		tried := 0
		for port := 1024; port < 65536; port++ {
			want := packet{from: addrPort(f.client, port), to: f.pod + ":53", proto: udp}
			frame := want.bytes()
			if binary.BigEndian.Uint16(frame[want.headers()-2:]) != 0xffff {
				continue
			}
			in := want
			in.to = f.node + ":30053"
			w.step(t, step{name: "to the backend", in: in, want: want})
			tried++
		}
		if tried == 0 {
			t.Fatal("no packet has such a checksum")
		}
	})
}

// A million first packets from as many sources evict each other, and nothing that is established.
func TestFlood(t *testing.T) {
	const established, first, flood = 1000, 2000, 1_000_000
	config := standardConfig()
	config.SnatFirst, config.SnatLast = 20000, 60999
	eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
		if (w.name == "tc") != (f.any == "0.0.0.0") {
			return // each program and each family once
		}
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		var links []*session
		for i := range established {
			l := w.dial(t, f, addrPort(f.client, first+i), f.node+":30080", f.pod+":8080")
			l.shake(t)
			links = append(links, l)
		}
		half := w.dial(t, f, addrPort(f.client, first+established), f.node+":30080", f.pod+":8080")
		w.flood(t, opening(f), flood)
		if open, pending := w.rows(t); open != 2*established || pending > int(w.maps.CtPending.MaxEntries()) || pending < 1000 {
			t.Errorf("%d rows are established, %d half open; want %d and at most %d", open, pending, 2*established, w.maps.CtPending.MaxEntries())
		}
		ends := map[string]bool{}
		for _, l := range links {
			l.request(t, "after the flood", ack, 1002)
			l.reply(t, "after the flood", ack, 1001)
			ends[l.snat] = true
		}
		again := w.dial(t, f, half.client, half.vip, half.pod)
		again.shake(t)
		if ends[again.snat] || len(ends) != established {
			t.Errorf("%d ports for %d flows; %s was taken: %v", len(ends), established, again.snat, ends[again.snat])
		}
	})
}

// flood runs packets that differ only in their source.
func (w *bareNode) flood(t *testing.T, p packet, n int) {
	t.Helper()
	frame := p.bytes()
	at := len(frame) - len(p.content()) - 20 - 8 // the end of the source address
	if netip.MustParseAddrPort(p.from).Addr().Is6() {
		at = len(frame) - len(p.content()) - 20 - 20
	}
	err := w.do(func() error {
		for i := range n {
			binary.BigEndian.PutUint32(frame[at:], uint32(0x0b000000+i))
			if _, err := w.programs[w.in].Run(&ebpf.RunOptions{Data: frame}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
