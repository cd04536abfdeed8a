package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// wrapping is how a node encapsulates a packet for a backend on another node.
type wrapping struct {
	name string
	mode uint8
	make func(from, backend string, frame []byte) []byte
}

func wrappings() []wrapping {
	return []wrapping{
		{"ipip", uint8(bpf.MapsDsrModeDSR_IPIP), inIPIP},
		{"geneve", uint8(bpf.MapsDsrModeDSR_GENEVE), inGeneve},
		{"opt", uint8(bpf.MapsDsrModeDSR_OPT), withOption},
	}
}

// around returns by how many bytes a packet grows.
func (m wrapping) around(f family) int {
	frame := packet{from: f.client + ":1", to: f.node + ":1", proto: udp}.bytes()
	return len(m.make(f.snat, f.pod+":1", frame)) - len(frame)
}

// direct has the backends of the last added service answer their clients directly.
func (w *bareNode) direct(mode uint8) {
	w.tables.Services[w.services].Flags |= maps.DirectFlags(mode)
}

// hosts tells the node about a backend of the last added service, as a target for other nodes to
// forward to.
func (w *bareNode) hosts(t *testing.T, backend string) {
	t.Helper()
	at := netip.MustParseAddrPort(backend)
	for _, key := range []maps.SvcKey{maps.HostedAddrKey(at.Addr()), maps.HostedKey(at, w.services)} {
		if err := w.tables.Svcs.Update(key, maps.Svc{Service: w.services, Kind: maps.Hosted}); err != nil {
			t.Fatal(err)
		}
	}
}

// inIPIP returns a frame encapsulated in IP, from a node to a backend and its port.
func inIPIP(from, backend string, frame []byte) []byte {
	source, to := netip.MustParseAddr(host(from)), netip.MustParseAddrPort(backend)
	inner := frame[14:]
	var header []byte
	if source.Is4() {
		header = append([]byte{0x45, inner[1] & 0xfc, 0, 0, byte(to.Port() >> 8), byte(to.Port()), 0x40, 0, 64, 4, 0, 0},
			append(source.AsSlice(), to.Addr().AsSlice()...)...)
		binary.BigEndian.PutUint16(header[2:], uint16(20+len(inner)))
		binary.BigEndian.PutUint16(header[10:], sum16(header))
	} else {
		header = append([]byte{0x60, 1, byte(to.Port() >> 8), byte(to.Port()), 0, 0, 41, 64}, append(source.AsSlice(), to.Addr().AsSlice()...)...)
		binary.BigEndian.PutUint16(header[4:], uint16(len(inner)))
	}
	return append(append(append([]byte{}, frame[:14]...), header...), inner...)
}

// inGeneve does the same with Geneve, from a source port that nodes have.
func inGeneve(from, backend string, frame []byte) []byte {
	port := netip.MustParseAddrPort(backend).Port()
	inner := frame[14:]
	l4 := []byte{2, 0, 0x17, 0xc1, 0, 0, 0, 0, 2, 0x40, 0x65, 0x58, 0, 0, 0, 0, 0xff, 0x1d, 0x81, 1, byte(port >> 8), byte(port), 0, 0}
	binary.BigEndian.PutUint16(l4[4:], uint16(8+16+14+len(inner)))
	l4 = append(append(l4, frame[:14]...), inner...)
	out := inIPIP(from, backend, append(append([]byte{}, frame[:14]...), l4...))
	if frame[12] == 0x86 {
		out[14+6] = udp
		binary.BigEndian.PutUint32(out[14:], 0x60010000|uint32(port))
		return out
	}
	out[14+1], out[14+9], out[14+10], out[14+11] = inner[1]&0xfc, udp, 0, 0
	binary.BigEndian.PutUint16(out[14+10:], sum16(out[14:34]))
	return out
}

// wantWrapped fails unless a packet comes out of the wire, encapsulated for the backend.
func (w *wire) wantWrapped(t *testing.T, m wrapping, from, backend string, frame []byte) {
	t.Helper()
	copy(frame, w.macs(false))
	want := m.make(from, backend, frame)
	if err := w.socket.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
		t.Fatal(err)
	}
	var last []byte
	for frame := make([]byte, 65536); ; {
		n, err := w.socket.Read(frame)
		if err != nil {
			t.Fatalf("%x did not come, the last was %x: %v; counted: %v", want, last, err, w.router.reasons(t))
		}
		last = bytes.Clone(frame[:n])
		if m.name == "geneve" && n > 56 && portAt(last)[0]&^1 == 2 {
			copy(portAt(last), []byte{2, 0}) // any of 512 source ports will do
		}
		if bytes.Equal(last, want) {
			return
		}
	}
}

// portAt returns the source port of a frame without tags and options.
func portAt(frame []byte) []byte {
	if frame[12] == 0x86 {
		return frame[54:56]
	}
	return frame[34:36]
}

// front returns a node that forwards to a backend on another node, which answers directly.
func front(t *testing.T, s *routerNode, f family, m wrapping, proto byte) (outside, inside *wire) {
	t.Helper()
	outside, inside = s.wire(t, "outside"), s.wire(t, "inside")
	s.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":8080", false)
	s.direct(m.mode)
	outside.reach(t, f.client, true)
	inside.reach(t, f.pod, true)
	return outside, inside
}

func eachWrapping(t *testing.T, story func(t *testing.T, s *routerNode, f family, m wrapping)) {
	t.Helper()
	for _, m := range wrappings() {
		t.Run(m.name, func(t *testing.T) {
			eachRouterNode(t, func(t *testing.T, s *routerNode, f family) { story(t, s, f, m) })
		})
	}
}

// Every packet of a flow reaches the backend's node as the client sent it, encapsulated, whether
// this node has seen earlier packets or not; the node keeps only one row.
func TestDirectForward(t *testing.T) {
	for _, proto := range []byte{tcp, udp, sctp} {
		eachWrapping(t, func(t *testing.T, s *routerNode, f family, m wrapping) {
			outside, inside := front(t, s, f, m, proto)
			for _, flags := range []byte{syn, syn, ack, fin | ack, ack, rst} {
				p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: proto, flags: flags, ack: 1001}
				outside.send(t, p)
				inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
				s.expectRows(t, 0, 1)
			}
			s.empty(t)
			p := packet{from: f.client + ":4001", to: f.node + ":30080", proto: proto, flags: ack, ack: 7, payload: 900}
			outside.send(t, p)
			inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
			s.expectRows(t, 0, 1)
			before := s.countedAt(t, "tc", "ttl")
			outside.send(t, withTTL(p, 1))
			outside.send(t, withTTL(p, 2))
			inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 1).bytes())
			if n := s.countedAt(t, "tc", "ttl"); n != before+1 {
				t.Errorf("%d packets are counted as ttl, want 1", n-before)
			}
		})
	}
}

// XDP alone handles packets that go back where they came from.
func TestDirectHairpin(t *testing.T) {
	rig.Root(t)
	for _, h := range hooks() {
		for version, f := range families() {
			t.Run(h.name+" "+version, func(t *testing.T) {
				s := newRouterNode(t, f, quick(), h)
				w := s.wire(t, "outside")
				if h.name == "xdp" {
					s.block(t, w)
				}
				w.reach(t, f.client, true)
				w.reach(t, f.pod, true)
				for _, m := range wrappings() {
					s.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
					s.direct(m.mode)
					s.empty(t)
					s.hairpin(t, w, m)
				}
			})
		}
	}
}

func (s *routerNode) hairpin(t *testing.T, w *wire, m wrapping) {
	t.Helper()
	f := s.f
	for _, flags := range []byte{syn, ack} {
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: flags, payload: 1000}
		w.send(t, p)
		w.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
	}
}

// A client that sends more than fits is told how much does, whether fragmenting is allowed or not;
// one byte less arrives.
func TestDirectTooBig(t *testing.T) {
	eachWrapping(t, func(t *testing.T, s *routerNode, f family, m wrapping) {
		outside, inside := front(t, s, f, m, udp)
		inside.setMTU(t, 1400)
		client, vip, around := f.client+":4000", f.node+":30080", m.around(f)
		headers := packet{from: client, to: vip, proto: udp}.headers() - 14
		for _, whole := range []bool{true, false} {
			p := packet{from: client, to: vip, proto: udp, whole: whole, payload: 1400 - around - headers}
			outside.send(t, p)
			inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
			p.payload++
			want := refusalOf(f, host(f.node), host(f.client), f.kinds().tooBig, tooBigCode(f), uint32(1400-around), p.bytes()[14:])
			copy(want, outside.macs(false))
			outside.send(t, p)
			outside.wantBack(t, want)
		}
	})
}

// Fragments and errors go the way of their flow, unchanged.
func TestDirectPortless(t *testing.T) {
	eachWrapping(t, func(t *testing.T, s *routerNode, f family, m wrapping) {
		outside, inside := front(t, s, f, m, udp)
		client, vip := f.client+":4000", f.node+":30080"
		p := packet{from: client, to: vip, proto: udp}
		outside.send(t, p)
		inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
		for _, fragment := range []uint16{0x2000, 1} {
			p := packet{from: client, to: vip, proto: udp, fragment: fragment, payload: 24}
			outside.send(t, p)
			inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
		}
		about := packet{from: vip, to: client, proto: udp}
		report := message{from: host(f.client), to: host(f.node), kind: f.kinds().tooBig, code: tooBigCode(f), rest: 1400, body: quoted(about, 8)}
		frame := report.bytes()
		copy(frame, outside.macs(true))
		if _, err := outside.socket.Write(frame); err != nil {
			t.Fatal(err)
		}
		report.ttl = 63
		frame = report.bytes()
		inside.wantWrapped(t, m, f.snat, f.pod+":8080", frame)
	})
}

// A packet that another node forwarded is not forwarded again, even if this node, as a front node,
// has a row of the flow.
func TestDirectOnce(t *testing.T) {
	eachWrapping(t, func(t *testing.T, s *routerNode, f family, m wrapping) {
		outside, inside := front(t, s, f, m, udp)
		s.hosts(t, f.pod+":8080")
		client, vip := f.client+":4000", f.node+":30080"
		first := packet{from: client, to: vip, proto: udp, fragment: 0x2000, payload: 24}
		outside.send(t, first)
		inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(first, 63).bytes())
		later := packet{from: client, to: vip, proto: udp, fragment: 1, payload: 24}
		report := message{from: host(f.client), to: host(f.node), kind: f.kinds().tooBig, code: tooBigCode(f), rest: 1400,
			body: quoted(packet{from: vip, to: client, proto: udp}, 8)}
		for _, frame := range [][]byte{later.bytes(), report.bytes()} {
			before := s.countedAt(t, "tc", "stray")
			outside.put(t, m.make(f.snat, f.pod+":8080", frame))
			outside.send(t, first)
			inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(first, 63).bytes())
			if n := s.countedAt(t, "tc", "stray"); n != before+1 {
				t.Errorf("%d packets are counted as strays, want 1", n-before)
			}
		}
	})
}

// unwrapped runs a packet encapsulated by another node, and fails unless the result is as wanted.
// XDP leaves all such packets to tc.
func (w *bareNode) unwrapped(t *testing.T, name string, frame []byte, want packet, drop string) {
	t.Helper()
	before := uint64(0)
	if drop != "" {
		before = w.counted(t, drop)
	}
	verdict, out := w.run(t, w.in, frame)
	switch {
	case w.name == "xdp" || drop == "next":
		if diff := cmp.Diff(frame, out); verdict != "pass" || diff != "" {
			t.Errorf("%s: %s (-want +have):\n%s", name, verdict, diff)
		}
	case drop != "":
		if verdict != "drop" || w.counted(t, drop) != before+1 {
			t.Errorf("%s: %s, want it dropped as %s; counted: %v", name, verdict, drop, w.reasons(t))
		}
	default:
		if diff := cmp.Diff(want.bytes(), out); verdict != "pass" || diff != "" {
			t.Errorf("%s: %s (-want +have):\n%s", name, verdict, diff)
		}
	}
}

// What another node forwards reaches the backend that it named, whichever address the client used;
// and the backend's answers come from the address that the client dialed.
func TestDirectArrives(t *testing.T) {
	for _, proto := range []byte{tcp, udp, sctp} {
		acked := map[byte]uint32{tcp: 1001, udp: 0, sctp: 1000}[proto]
		for _, m := range wrappings() {
			each(t, func(t *testing.T, w *bareNode, f family) {
				w.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":9999", false)
				w.hosts(t, f.pod+":80")
				w.leaves(t)
				w.sumUp(t, proto != sctp)
				pod, client := f.pod+":80", f.client+":4000"
				for _, vip := range []string{f.vip + ":30080", f.client + ":30080"} { // not an address of this node
					for _, flags := range []byte{syn, ack} {
						p := packet{from: client, to: vip, proto: proto, flags: flags, ack: acked, payload: 700}
						to := packet{from: client, to: pod, proto: proto, flags: flags, ack: acked, payload: 700}
						if vip != f.vip+":30080" && w.out != "" {
							_, out := w.run(t, w.in, m.make(f.snat, pod, p.bytes()))
							to.from = f.client + ":" + portOf(out, f)
							if to.from == client {
								t.Errorf("flows of two frontends share %s", client)
							}
						}
						w.unwrapped(t, "request", m.make(f.snat, pod, p.bytes()), to, "")
						w.step(t, step{name: "answer", leaving: true, in: packet{from: pod, to: to.from, proto: proto, flags: syn | ack, seq: 1000},
							want: packet{from: vip, to: client, proto: proto, flags: syn | ack, seq: 1000}})
					}
				}
				if open, half := w.rows(t); w.out != "" && (open != 4 || half != 0) {
					t.Errorf("%d rows are established and %d half open, want 4 and 0", open, half)
				}
			})
		}
	}
}

// What other nodes forward reaches the backend after this node's own frontends are closed, whatever
// their kind, while packets that come in directly find no frontend.
func TestDirectClosed(t *testing.T) {
	for _, m := range wrappings() {
		for kind, port := range map[uint32]string{maps.NodePort: ":30080", maps.LoadBalancer: ":80"} {
			each(t, func(t *testing.T, w *bareNode, f family) {
				frontend := f.vip + port
				if kind == maps.NodePort {
					frontend = f.any + port
				}
				w.service(t, frontend, tcp, kind, f.pod+":8080", true)
				w.hosts(t, f.pod+":8080")
				w.closes(t, frontend, kind)
				w.leaves(t)
				client, pod := f.client+":4000", f.pod+":8080"
				for _, flags := range []byte{syn, ack} {
					p := packet{from: client, to: f.vip + port, proto: tcp, flags: flags, ack: 1001}
					want := p
					want.to = pod
					w.unwrapped(t, "forwarded", m.make(f.snat, pod, p.bytes()), want, "")
				}
				p := packet{from: f.client + ":4001", to: f.vip + port, proto: tcp, flags: syn}
				if verdict, out := w.run(t, w.in, p.bytes()); verdict != "pass" || !bytes.Equal(out, p.bytes()) {
					t.Errorf("a packet that comes in directly: %s\n%x", verdict, out)
				}
			})
		}
	}
}

// closes turns a frontend into the row that it leaves behind.
func (w *bareNode) closes(t *testing.T, frontend string, kind uint32) {
	t.Helper()
	at := netip.MustParseAddrPort(frontend)
	key := maps.KeyOf(at.Addr(), at.Port(), model.TCP)
	if err := errors.Join(w.tables.Svcs.Delete([]maps.SvcKey{key}), w.tables.Svcs.Update(maps.ClosedKey(key), maps.Svc{Service: w.services, Kind: kind})); err != nil {
		t.Fatal(err)
	}
}

// Forwarded packets that this node knows no backend for go nowhere, whoever sends them; packets for
// others are left alone.
func TestDirectStrays(t *testing.T) {
	for _, m := range wrappings() {
		each(t, func(t *testing.T, w *bareNode, f family) {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
			w.hosts(t, f.pod+":8080")
			w.leaves(t)
			client := f.client + ":4000"
			to := func(vip string) packet { return packet{from: client, to: vip, proto: tcp, flags: syn} }
			in := func(backend string, frame []byte) []byte { return m.make(f.snat, backend, frame) }
			pod := f.pod + ":8080"
			w.unwrapped(t, "no frontend", in(pod, to(f.vip+":81").bytes()), packet{}, map[string]string{"ipip": "next", "geneve": "next", "opt": "stray"}[m.name])
			w.unwrapped(t, "no backend", in(f.client+":8080", to(f.vip+":30080").bytes()), packet{}, "next")
			w.unwrapped(t, "no port", in(f.pod+":0", to(f.vip+":30080").bytes()), packet{}, map[string]string{"ipip": "next", "geneve": "next", "opt": "stray"}[m.name])
			w.unwrapped(t, "twice", in(pod, in(pod, to(f.vip+":30080").bytes())), packet{}, map[string]string{"ipip": "next", "geneve": "next", "opt": "stray"}[m.name])
			w.unwrapped(t, "nobody's reset", in(pod, packet{from: client, to: f.vip + ":30080", proto: tcp, flags: rst}.bytes()),
				packet{from: client, to: pod, proto: tcp, flags: rst}, "")
			later := packet{from: client, to: f.node + ":30080", proto: tcp, fragment: 3}
			w.unwrapped(t, "nobody's fragment", in(pod, later.bytes()), packet{}, "stray")
			frame := in(pod, to(f.vip+":30080").bytes())
			for n := w.shortest(f); n < len(frame)-5; n++ {
				if verdict, _ := w.run(t, w.in, frame[:n]); verdict == "answer" {
					t.Errorf("cut to %d bytes: %s", n, verdict)
				}
			}
			g := guardedIn(f)
			w.service(t, addrPort(g.vip, 443), tcp, maps.LoadBalancer, f.pod+":8443", true)
			w.hosts(t, f.pod+":8443")
			w.guard(t, g.elsewhere)
			w.unwrapped(t, "no source range", in(f.pod+":8443", to(addrPort(g.vip, 443)).bytes()), packet{}, "source-range")
			w.service(t, f.vip+":80", tcp, maps.ClusterIP, f.pod+":8080", true)
			w.unwrapped(t, "a ClusterIP", in(pod, to(f.vip+":80").bytes()), packet{}, "cluster-ip")
		})
	}
}

// A flow of which the front node sees one direction is forgotten like others: soon if the client
// has sent only its first packet, and after the timeout of established flows if it has sent more.
// The stack finds the way of such a flow here, so XDP would leave it to tc.
func TestDirectCollected(t *testing.T) {
	eachTC(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		w.direct(wrappings()[0].mode)
		never := uint32(1 << 20)
		half := &maps.FlowLimits{{never, never, never, never, 0}}
		open := &maps.FlowLimits{{0, never, never, never, never}}
		closing := &maps.FlowLimits{{never, 0, never, never, never}}
		for _, c := range []struct {
			name  string
			flags []byte
			by    *maps.FlowLimits
		}{
			{"begun", []byte{syn}, half}, {"established", []byte{syn, ack}, open}, {"ended", []byte{syn, ack, fin | ack, ack}, closing},
			{"met at its end", []byte{fin | ack}, closing}, {"begun with an end", []byte{syn | fin}, half},
			{"dialed again with an end", []byte{syn, ack, syn | fin}, open},
		} {
			for _, flags := range c.flags {
				w.run(t, w.in, packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: flags}.bytes())
			}
			for _, limits := range []*maps.FlowLimits{half, open, closing} {
				if n := w.doom(t, maps.DoomIdle, limits); (n == 1) != (limits == c.by) {
					t.Errorf("%s: %d flows are forgotten with %v", c.name, n, limits)
				} else if n == 1 {
					break
				}
			}
			w.empty(t)
		}
	})
}
