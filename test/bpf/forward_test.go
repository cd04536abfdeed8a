package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// quick returns a configuration in which every jiffy is a tick, so that tests need not wait for
// what happens once in a tick.
func quick() bpf.MapsPacketConfig {
	config := standardConfig()
	config.TickShift = 0
	return config
}

// eachRouterNode runs a story of forwarding with tc, and with XDP and tc behind it.
func eachRouterNode(t *testing.T, story func(t *testing.T, s *routerNode, f family)) {
	t.Helper()
	rig.Root(t)
	both := hooks()
	for name, on := range map[string][]hook{"tc": both[:1], "xdp and tc": {both[1], both[0]}} {
		for version, f := range families() {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				story(t, newRouterNode(t, f, quick(), on...), f)
			})
		}
	}
}

// call is a flow between wires.
type call struct {
	client, vip, pod string
	snat             string
	proto            byte
	outside, inside  *wire
}

func (c *call) request(t *testing.T, flags byte, acked uint32) {
	t.Helper()
	c.outside.send(t, packet{from: c.client, to: c.vip, proto: c.proto, flags: flags, ack: acked})
	c.snat = c.inside.want(t, packet{from: c.snat, to: c.pod, proto: c.proto, flags: flags, ack: acked, ttl: 63})
}

func (c *call) reply(t *testing.T, flags byte, seq uint32) {
	t.Helper()
	c.inside.send(t, packet{from: c.pod, to: c.snat, proto: c.proto, flags: flags, seq: seq})
	c.outside.want(t, packet{from: c.vip, to: c.client, proto: c.proto, flags: flags, seq: seq, ttl: 63})
}

// establish establishes a TCP flow between a client and a backend, each behind a wire.
func establish(t *testing.T, s *routerNode, f family, outside, inside *wire) *call {
	t.Helper()
	s.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
	c := &call{client: f.client + ":4000", vip: f.node + ":30080", pod: f.pod + ":8080", snat: f.snat + ":0", proto: tcp,
		outside: outside, inside: inside}
	outside.reach(t, f.client, true)
	inside.reach(t, f.pod, true)
	c.request(t, syn, 0)
	c.reply(t, syn|ack, 1000)
	c.request(t, ack, 1001)
	c.request(t, ack, 1002)
	c.reply(t, ack, 1001)
	s.expectRows(t, 2, 0)
	return c
}

// Between devices, tc forwards frames with new link addresses and one hop less, in both directions.
func TestForward(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		establish(t, s, f, s.wire(t, "outside"), s.wire(t, "inside"))
	})
}

// If a flow is given up before it was established, its backend's row goes too, whichever program
// deletes it.
func TestForwardReset(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
		s.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		outside.reach(t, f.client, true)
		inside.reach(t, f.pod, true)
		c := &call{client: f.client + ":4000", vip: f.node + ":30080", pod: f.pod + ":8080", snat: f.snat + ":0", proto: tcp,
			outside: outside, inside: inside}
		c.request(t, syn, 0)
		c.request(t, rst, 0)
		s.expectRows(t, 0, 0)
	})
}

// XDP alone forwards packets that go back where they came from, without the stack.
func TestHairpin(t *testing.T) {
	rig.Root(t)
	for _, h := range hooks() {
		for version, f := range families() {
			t.Run(h.name+" "+version, func(t *testing.T) {
				s := newRouterNode(t, f, quick(), h)
				w := s.wire(t, "outside")
				if h.name == "xdp" {
					s.block(t, w)
				}
				establish(t, s, f, w, w)
			})
		}
	}
}

// A packet with no hops left is dropped, and counted.
func TestHops(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
		c := establish(t, s, f, outside, inside)
		p := packet{from: c.client, to: c.vip, proto: tcp, flags: ack, ack: 1001}
		before := s.countedAt(t, "tc", "ttl")
		outside.send(t, withTTL(p, 1))
		outside.send(t, withTTL(p, 2))
		inside.want(t, withTTL(packet{from: c.snat, to: c.pod, proto: tcp, flags: ack, ack: 1001}, 1))
		if n := s.countedAt(t, "tc", "ttl"); n != before+1 {
			t.Errorf("%d packets are counted as ttl, want 1", n-before)
		}
	})
}

// As long as a neighbor is not resolved, the kernel asks for it, and no packet is lost; then the
// row has it.
func TestNeighbor(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
		s.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", false)
		bits := map[string]string{"0.0.0.0": "/32", "[::]": "/128"}[f.any]
		rig.Address(t, inside.far, "far", strings.Trim(f.pod, "[]")+bits)
		rig.Address(t, s.netns, "inside", strings.Trim(f.snat, "[]")+bits)
		outside.reach(t, f.client, true)
		inside.reach(t, f.pod, false)
		inside.routeBack(t, f.snat)
		c := &call{client: f.client + ":4000", vip: f.node + ":30053", pod: f.pod + ":53", snat: f.snat + ":0", proto: udp,
			outside: outside, inside: inside}
		c.request(t, 0, 0)
		c.reply(t, 0, 0)
		s.inTime(t, "a row with the neighbor", func() bool {
			c.request(t, 0, 0)
			row, ok := s.row(t, c.client, c.vip, udp)
			return ok && row.Dmac == [6]uint8(inside.end.Attrs().HardwareAddr)
		})
	})
}

// A changed route is followed within a tick.
func TestRouteChanges(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		outside, inside, other := s.wire(t, "outside"), s.wire(t, "inside"), s.wire(t, "other")
		c := establish(t, s, f, outside, inside)
		other.reach(t, f.pod, true)
		s.inTime(t, "a packet on the other wire", func() bool {
			outside.send(t, packet{from: c.client, to: c.vip, proto: tcp, flags: ack, ack: 1001})
			row, _ := s.row(t, c.client, c.vip, tcp)
			return row.Ifindex == uint32(other.near.Attrs().Index)
		})
		other.want(t, packet{from: c.snat, to: c.pod, proto: tcp, flags: ack, ack: 1001, ttl: 63})
	})
}

// A packet too large for a link is dropped and counted, unless it may be fragmented: then the stack
// does that, whether or not the packet has this node's address by then.
func TestLinkTakesLess(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
		inside.setMTU(t, 1400)
		snatAddr := netip.MustParseAddr(host(f.snat)) // a source that the stack takes from no other host
		rig.Address(t, s.netns, "outside", netip.PrefixFrom(snatAddr, snatAddr.BitLen()).String())
		s.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", false)
		outside.reach(t, f.client, true)
		inside.reach(t, f.pod, true)
		client, vip, pod, snat := f.client+":4000", f.node+":30053", f.pod+":53", f.snat+":0"
		headers := packet{from: client, to: vip, proto: udp}.headers() - 14
		before := s.countedAt(t, "tc", "too-big")
		// The first is too large, which must not keep the second from going on.
		for _, size := range []int{1410, 1400, 1401} {
			outside.send(t, packet{from: client, to: vip, proto: udp, whole: true, payload: size - headers})
		}
		snat = inside.want(t, packet{from: snat, to: pod, proto: udp, whole: true, payload: 1400 - headers, ttl: 63})
		outside.send(t, packet{from: client, to: vip, proto: udp, whole: true})
		inside.want(t, packet{from: snat, to: pod, proto: udp, whole: true, ttl: 63})
		outside.send(t, packet{from: client, to: vip, proto: udp, payload: 1401 - headers})
		if f.any == "[::]" { // no router fragments IPv6
			s.inTime(t, "a packet too big", func() bool { return s.countedAt(t, "tc", "too-big") == before+3 })
			return
		}
		whole := packet{from: snat, to: pod, proto: udp, payload: 1401 - headers, ttl: 63}
		inside.wantPieces(t, whole, 1396, 25)
		if n := s.countedAt(t, "tc", "too-big"); n != before+2 {
			t.Errorf("%d packets are counted as too big, want 2", n-before)
		}
		s.service(t, f.any+":30054", udp, maps.NodePort, f.pod+":54", true)
		outside.send(t, packet{from: client, to: f.node + ":30054", proto: udp, payload: 1401 - headers})
		inside.wantPieces(t, packet{from: client, to: f.pod + ":54", proto: udp, payload: 1401 - headers, ttl: 63}, 1396, 25)
	})
}

// What tc_from_netdev has rewritten passes tc_to_netdev on its way out unchanged, whoever found the
// way. The planted rows would make it translate the packets a second time.
func TestTranslatedOnce(t *testing.T) {
	rig.Root(t)
	for version, f := range families() {
		t.Run(version, func(t *testing.T) {
			config := quick()
			config.SnatFirst, config.SnatLast = 40000, 40000
			s := newRouterNode(t, f, config, hooks()[:1]...)
			outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
			outside.reach(t, f.client, true)
			inside.reach(t, f.pod, true)
			for _, backend := range []struct {
				port, from string
				local      bool
			}{{":53", f.snat + ":40000", false}, {":54", f.client + ":4000", true}} {
				s.service(t, f.any+":300"+backend.port[1:], udp, maps.NodePort, f.pod+backend.port, backend.local)
				s.plant(t, s.maps.CtPending, flowOf(backend.from, f.pod+backend.port, udp), rowOf(f.vip+":53", f.vip+":4000", true))
				outside.send(t, packet{from: f.client + ":4000", to: f.node + ":300" + backend.port[1:], proto: udp, payload: 5})
				inside.want(t, packet{from: backend.from, to: f.pod + backend.port, proto: udp, payload: 5, ttl: 63})
			}
		})
	}
}

// The stack finds the way to a backend on this node, because the pod network has its own rules.
func TestStackFindsPods(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
		s.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		outside.reach(t, f.client, true)
		inside.reach(t, f.pod, true)
		client, vip := f.client+":4000", f.node+":30053"
		for range 2 { // the first packet and one of a known flow
			outside.send(t, packet{from: client, to: vip, proto: udp})
			inside.want(t, packet{from: client, to: f.pod + ":53", proto: udp, ttl: 63})
		}
		var row bpf.MapsCtEntry
		if err := s.maps.CtPending.Lookup(flowOf(client, vip, udp), &row); err != nil || row.Ifindex != 0 {
			t.Errorf("the row of a pod here has a way of its own: %+v, %v", row, err)
		}
	})
}

// wantPieces fails unless an IPv4 packet comes out in pieces of these lengths, headers included. A
// source port of zero stands for any.
func (w *wire) wantPieces(t *testing.T, p packet, lengths ...int) {
	t.Helper()
	var content []byte
	for i, length := range lengths {
		frame := w.next(t, readTimeout)
		if len(frame) != 14+length {
			t.Fatalf("piece %d has %d bytes, want %d: %x; counted: %v", i, len(frame), 14+length, frame, w.router.reasons(t))
		}
		if i == 0 && strings.HasSuffix(p.from, ":0") {
			p.from = strings.TrimSuffix(p.from, "0") + portOf(frame, w.router.f)
		}
		flags := binary.BigEndian.Uint16(frame[14+6:])
		if int(flags&0x1fff)*8 != len(content) || (flags&0x2000 == 0) != (i == len(lengths)-1) {
			t.Errorf("piece %d begins at %d, more: %t", i, int(flags&0x1fff)*8, flags&0x2000 != 0)
		}
		if want := p.bytes()[14+8 : 14+20]; frame[14+8] != want[0] || !bytes.Equal(frame[14+12:14+20], want[4:]) {
			t.Errorf("piece %d has hop limit %d and addresses %x, want %d and %x", i, frame[14+8], frame[14+12:14+20], want[0], want[4:])
		}
		content = append(content, frame[14+20:]...)
	}
	if want := p.bytes()[14+20:]; !bytes.Equal(content, want) {
		t.Errorf("the pieces make up %x, want %x", content, want)
	}
}
