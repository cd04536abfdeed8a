package bpf

import (
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// leaves routes everything that the node sends through a device of its own that is served.
func (w *bareNode) leaves(t *testing.T) {
	t.Helper()
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := w.netns.SetSysctl(name, "1"); err != nil {
			t.Fatal(err)
		}
	}
	rig.Veth(t, w.netns, "uplink", w.netns, "switch")
	node := handleOf(t, w.netns)
	uplink, err := node.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		_, to, err := net.ParseCIDR(all)
		if err != nil {
			t.Fatal(err)
		}
		if err := node.RouteReplace(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.maps.SetNatDevices(map[uint32]bool{uint32(uplink.Attrs().Index): true}); err != nil {
		t.Fatal(err)
	}
}

// serves has answers get their source rewritten on these wires, and on no others.
func (s *routerNode) serves(t *testing.T, wires ...*wire) {
	t.Helper()
	served := map[uint32]bool{}
	for _, w := range wires {
		served[uint32(w.near.Attrs().Index)] = true
	}
	if err := s.maps.SetNatDevices(served); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) put(t *testing.T, frame []byte) {
	t.Helper()
	copy(frame, w.macs(true))
	if _, err := w.socket.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// givingBack returns the wrappings that say which node forwarded a packet.
func givingBack() []wrapping {
	return slices.DeleteFunc(wrappings(), func(m wrapping) bool { return m.mode == uint8(bpf.MapsDsrModeDSR_OPT) })
}

// eachSlowRouterNode is eachWrapping for the given wrappings, with ticks longer than a test.
func eachSlowRouterNode(t *testing.T, list []wrapping, story func(t *testing.T, s *routerNode, f family, m wrapping)) {
	t.Helper()
	rig.Root(t)
	config := standardConfig()
	config.TickShift = 14
	both := hooks()
	for _, m := range list {
		for name, on := range map[string][]hook{"tc": both[:1], "xdp and tc": {both[1], both[0]}} {
			for version, f := range families() {
				t.Run(m.name+" "+name+" "+version, func(t *testing.T) { story(t, newRouterNode(t, f, config, on...), f, m) })
			}
		}
	}
}

// If an answer to a client would not leave through a served device, the packet goes back to the
// forwarding node, and this node keeps nothing of the flow. Every other client is answered from
// here.
func TestDSRReturned(t *testing.T) {
	eachSlowRouterNode(t, givingBack(), func(t *testing.T, s *routerNode, f family, m wrapping) {
		front, pods := s.wire(t, "front"), s.wire(t, "pods")
		front.reach(t, f.snat, true)
		pods.reach(t, f.client, true)
		own := map[string]string{"0.0.0.0": "192.0.2.77/32", "[::]": "2001:db8::77/128"}[f.any]
		rig.Address(t, s.netns, "front", own)
		mine := map[string]string{"0.0.0.0": "192.0.2.77", "[::]": "[2001:db8::77]"}[f.any]
		for _, proto := range []byte{tcp, udp, sctp} {
			s.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":8080", true)
			s.hosts(t, f.pod+":8080") // for this service
		}
		kept := 0
		back := func(p packet) {
			t.Helper()
			before := s.countedAt(t, "tc", "dsr-returned")
			front.put(t, m.make(f.snat, f.pod+":8080", p.bytes()))
			front.wantWrapped(t, m, f.snat, f.snat+":0", withTTL(p, 63).bytes())
			s.expectRows(t, 0, kept)
			if n := s.countedAt(t, "tc", "dsr-returned"); n != before+1 {
				t.Errorf("counted %d times, want once", n-before)
			}
		}
		for _, proto := range []byte{tcp, udp, sctp} {
			p := packet{from: f.client + ":4000", to: f.vip + ":30080", proto: proto, flags: syn, payload: 1000}
			s.serves(t, front)
			back(p)
			back(packet{from: f.client + ":4000", to: f.vip + ":30080", proto: proto, flags: ack, ack: 1001})
			s.serves(t, front, pods)
			back(packet{from: mine + ":4000", to: f.vip + ":30080", proto: proto, flags: syn})
			front.put(t, m.make(f.snat, f.pod+":8080", p.bytes()))
			kept = 2
			back(packet{from: mine + ":4001", to: f.vip + ":30080", proto: proto, flags: syn}) // after it: both were seen
			s.empty(t)
			kept = 0
		}
	})
}

// A packet that does not fit on its way back goes nowhere, and begins no flow here: its client is
// told how much fits.
func TestDSRReturnedTooBig(t *testing.T) {
	eachSlowRouterNode(t, givingBack(), func(t *testing.T, s *routerNode, f family, m wrapping) {
		front, side := s.wire(t, "front"), s.wire(t, "side")
		front.reach(t, f.client, true)
		side.reach(t, f.snat, true)
		side.setMTU(t, 1400)
		s.service(t, f.any+":30080", udp, maps.NodePort, f.pod+":8080", true)
		s.hosts(t, f.pod+":8080")
		p := packet{from: f.client + ":4000", to: f.vip + ":30080", proto: udp}
		p.payload = 1400 - m.around(f) - (p.headers() - 14)
		front.put(t, m.make(f.snat, f.pod+":8080", p.bytes()))
		side.wantWrapped(t, m, f.snat, f.snat+":0", withTTL(p, 63).bytes())
		p.payload++
		want := refusalOf(f, host(f.vip), host(f.client), f.kinds().tooBig, tooBigCode(f), uint32(1400-m.around(f)), p.bytes()[14:])
		copy(want, front.macs(false))
		front.put(t, m.make(f.snat, f.pod+":8080", p.bytes()))
		front.wantBack(t, want)
		s.expectRows(t, 0, 0)
	})
}

// takeBack is a flow that this node forwards to a backend that cannot answer it.
type takeBack struct {
	*routerNode
	f               family
	m               wrapping
	outside, inside *wire
	request         packet
}

// wrapped has the client send, and expects the encapsulated packet on its way to the backend's
// node.
func (b *takeBack) wrapped(t *testing.T, flags byte) {
	t.Helper()
	b.request.flags = flags
	b.outside.send(t, b.request)
	b.inside.wantWrapped(t, b.m, b.f.snat, b.f.pod+":8080", withTTL(b.request, 63).bytes())
}

// other returns the address of another node.
func (f family) other() string {
	return map[string]string{"0.0.0.0": "192.0.2.2", "[::]": "[2001:db8::2]"}[f.any]
}

// giveBack does what the backend's node does, or a host that claims to be that node.
func (b *takeBack) giveBack(t *testing.T, backend string, p packet) {
	t.Helper()
	b.inside.put(t, b.m.make(backend, b.f.snat+":0", withTTL(p, 62).bytes()))
}

// translated expects the packet that goes to the backend once its flow has this node's address.
func (b *takeBack) translated(t *testing.T, p packet, ttl byte, from string) string {
	t.Helper()
	p.from, p.to, p.ttl = from, b.f.pod+":8080", ttl
	return b.inside.want(t, p)
}

// A flow that is given back uses this node's address from then on, so the backend's answers get
// through; packets that are still on their way back get the same address.
func TestTakenBack(t *testing.T) {
	eachSlowRouterNode(t, givingBack(), func(t *testing.T, s *routerNode, f family, m wrapping) {
		for _, proto := range []byte{tcp, udp} {
			outside, inside := s.wires["outside"], s.wires["inside"]
			if outside == nil {
				outside, inside = front(t, s, f, m, proto)
			} else {
				s.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":8080", false)
				s.direct(m.mode)
			}
			b := &takeBack{s, f, m, outside, inside, packet{from: f.client + ":4000", to: f.node + ":30080", proto: proto}}
			b.wrapped(t, syn)
			b.wrapped(t, syn)
			s.expectRows(t, 0, 1)
			b.giveBack(t, f.other(), b.request)
			snat := b.translated(t, b.request, 61, f.snat+":0")
			s.expectRows(t, 0, 2)
			b.giveBack(t, f.other(), b.request)
			b.translated(t, b.request, 61, snat)
			outside.send(t, b.request)
			b.translated(t, b.request, 63, snat)
			inside.send(t, packet{from: f.pod + ":8080", to: snat, proto: proto, flags: syn | ack, seq: 1000})
			outside.want(t, packet{from: f.node + ":30080", to: f.client + ":4000", proto: proto, flags: syn | ack, seq: 1000, ttl: 63})
			b.request.flags, b.request.ack = ack, 1001
			outside.send(t, b.request)
			b.translated(t, b.request, 63, snat)
			s.expectRows(t, 2, 0)
			s.empty(t)
		}
	})
}

// A host that only claims to give something back changes nothing: not for an unknown flow, not for
// another backend, and not for a flow that has gone on for a while.
func TestNotTakenBack(t *testing.T) {
	eachSlowRouterNode(t, givingBack(), func(t *testing.T, s *routerNode, f family, m wrapping) {
		outside, inside := front(t, s, f, m, tcp)
		b := &takeBack{s, f, m, outside, inside, packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp}}
		b.giveBack(t, f.other(), b.request)
		b.wrapped(t, syn)
		b.giveBack(t, f.vip, b.request)
		b.wrapped(t, ack)
		b.age(t, 60)
		before := s.countedAt(t, "tc", "stray")
		b.giveBack(t, f.other(), b.request)
		b.wrapped(t, ack)
		if n := s.countedAt(t, "tc", "stray"); n != before+1 {
			t.Errorf("%d packets are counted as strays, want only the one that came too late", n-before)
		}
		s.expectRows(t, 0, 1)
	})
}

// Packets with an option cannot be given back, because nothing in them proves that they are.
func TestOptionNotTakenBack(t *testing.T) {
	opt := slices.DeleteFunc(wrappings(), func(m wrapping) bool { return m.mode != uint8(bpf.MapsDsrModeDSR_OPT) })
	eachSlowRouterNode(t, opt, func(t *testing.T, s *routerNode, f family, m wrapping) {
		outside, inside := front(t, s, f, m, tcp)
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}
		for range 2 {
			outside.send(t, p)
			inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
			s.expectRows(t, 0, 1)
			for _, tunnel := range wrappings()[:2] {
				inside.put(t, tunnel.make(f.pod, f.client+":0", p.bytes()))
			}
		}
	})
}

// age makes the row of the flow older by this many ticks.
func (b *takeBack) age(t *testing.T, ticks uint16) {
	t.Helper()
	key := flowOf(b.request.from, b.request.to, b.request.proto)
	var row bpf.MapsCtEntry
	if err := b.maps.CtPending.Lookup(&key, &row); err != nil {
		t.Fatal(err)
	}
	row.AddrDiff -= ticks
	b.plant(t, b.maps.CtPending, key, row)
}

// If the first packet of a flow does not fit with its encapsulation, the flow gets this node's
// address instead; a flow that another node may have begun does not, and its client is told how
// much fits.
func TestDirectFirstTooBig(t *testing.T) {
	eachSlowRouterNode(t, wrappings(), func(t *testing.T, s *routerNode, f family, m wrapping) {
		outside, inside := front(t, s, f, m, udp)
		client, vip, around := f.client+":4000", f.node+":30080", m.around(f)
		headers := packet{from: client, to: vip, proto: udp}.headers() - 14
		inside.setMTU(t, 1400)
		p := packet{from: client, to: vip, proto: udp, payload: 1400 - around - headers + 1}
		outside.send(t, p)
		snat := inside.want(t, packet{from: f.snat + ":0", to: f.pod + ":8080", proto: udp, payload: p.payload, ttl: 63})
		s.expectRows(t, 0, 2)
		for _, payload := range []int{0, 1400 - headers} {
			p.payload = payload
			outside.send(t, p)
			inside.want(t, packet{from: snat, to: f.pod + ":8080", proto: udp, payload: payload, ttl: 63})
		}
		s.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		s.direct(m.mode)
		p = packet{from: client, to: vip, proto: tcp, flags: ack, ack: 7, whole: true}
		p.payload = 1400 - around - (p.headers() - 14) + 1
		for range 2 {
			want := refusalOf(f, host(f.node), host(f.client), f.kinds().tooBig, tooBigCode(f), uint32(1400-around), p.bytes()[14:])
			copy(want, outside.macs(false))
			outside.send(t, p)
			outside.wantBack(t, want)
		}
	})
}

// A first fragment that others have overtaken comes in again, and then still is the first packet of
// its flow.
func TestDirectFirstTooBigLate(t *testing.T) {
	eachSlowRouterNode(t, wrappings(), func(t *testing.T, s *routerNode, f family, m wrapping) {
		outside, inside := front(t, s, f, m, udp)
		inside.setMTU(t, 1400)
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: udp, fragment: 0x2000}
		p.payload = 1400 - m.around(f) - (p.headers() - 14) + 1
		outside.send(t, packet{from: p.from, to: p.to, proto: udp, fragment: 170, payload: 24})
		outside.send(t, p)
		for _, size := range []int{len(p.bytes()), len(p.bytes()) - p.payload + 24} {
			if frame := inside.next(t, readTimeout); len(frame) != size {
				t.Fatalf("%d bytes come out, want %d: %x; counted: %v", len(frame), size, frame, s.reasons(t))
			}
		}
		s.expectRows(t, 0, 2)
	})
}

// XDP leaves what it cannot answer to tc, which still knows that the packet is the first of its
// flow.
func TestDirectFirstTooBigHairpin(t *testing.T) {
	eachSlowRouterNode(t, wrappings(), func(t *testing.T, s *routerNode, f family, m wrapping) {
		w := s.wire(t, "outside")
		w.reach(t, f.client, true)
		w.reach(t, f.pod, true)
		s.service(t, f.any+":30080", udp, maps.NodePort, f.pod+":8080", false)
		s.direct(m.mode)
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: udp, payload: 1470}
		if f.any == "[::]" {
			p.payload = 1450
		}
		w.send(t, p)
		snat := w.want(t, packet{from: f.snat + ":0", to: f.pod + ":8080", proto: udp, payload: p.payload, ttl: 63})
		p.payload = 0
		w.send(t, p)
		w.want(t, packet{from: snat, to: f.pod + ":8080", proto: udp, ttl: 63})
		p.from = f.client + ":4001"
		w.send(t, p)
		w.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
	})
}
