package bpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// What the node itself sends to a service reaches its backend, wherever that is and by every
// protocol, and the answers come from the service's address only.
func TestOwnService(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		for i, m := range s.mates() {
			for j, proto := range []byte{tcp, udp, sctp} {
				for k, client := range []string{f.node + ":1500", f.node + ":700"} {
					frontend, backend := addrPort(f.clusterIP(), 80+10*i+j), addrPort(m.addr, 8080+10*i+j)
					if k == 0 {
						s.service(t, frontend, proto, maps.ClusterIP, backend, m.here)
					}
					s.converse(t, m, client, frontend, backend, proto)
				}
			}
		}
		if open, half := s.rows(t); open != 60 || half != 0 {
			t.Errorf("%d rows are established and %d half open, want 60 and 0", open, half)
		}
	})
}

// converse has the node send packets from its port to the frontend, and the backend answer each,
// until both have ended.
func (s *self) converse(t *testing.T, m mate, client, frontend, backend string, proto byte) {
	t.Helper()
	from := m.seen(client, frontend)
	for i, flags := range []byte{syn, ack, ack, ack | fin, ack} {
		there := packet{from: client, to: frontend, proto: proto, flags: flags, seq: 7, ack: 1001, payload: 20 + 300*i}
		if flags == syn {
			there.ack = 0
		}
		if proto == sctp {
			there.ack = 1000
		}
		s.send(t, there)
		there.from, there.to = from, backend
		from = s.gets(t, m, there)
		back := packet{from: backend, to: from, proto: proto, flags: flags | ack, seq: 1000, ack: 8, payload: 10 + 300*i}
		s.answers(t, m, back)
		back.from, back.to = frontend, client
		s.wants(t, back)
	}
	port := netip.MustParseAddrPort(from).Port()
	if drawn := port >= 61000 && port <= 61003; drawn != (m.wire != nil && strings.HasSuffix(client, ":1500")) {
		t.Errorf("%s saw %s as %s", m.what, client, from)
	}
}

// The node reaches every kind of frontend that is for clients in the cluster, whatever the policy
// for clients outside. Packets to other destinations, of flows older than the programs' memory, and
// from other senders leave unchanged.
func TestOwnFrontends(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		leaves := func(p packet) {
			t.Helper()
			s.send(t, p)
			s.outside.want(t, p)
		}
		m := s.mates()[2]
		for i, kind := range []uint32{maps.ClusterIP, maps.ExternalIP, maps.LoadBalancer} {
			frontend, backend := addrPort(f.clusterIP(), 80+i), addrPort(m.addr, 8080+i)
			s.service(t, frontend, tcp, kind, backend, false)
			s.tables.Services[s.services].Flags = maps.ExternalLocal
			s.converse(t, m, f.snat+":1500", frontend, backend, tcp)
			old := packet{from: f.node + ":2000", to: frontend, proto: tcp, flags: ack, seq: 9, ack: 9}
			if kind != maps.ClusterIP {
				leaves(old)
			} else {
				s.send(t, old)
				old.from, old.to = f.node+":0", backend
				s.outside.want(t, old)
			}
			leaves(packet{from: f.node + ":2001", to: frontend, proto: tcp, flags: rst, seq: 9})
			leaves(packet{from: f.vip + ":1500", to: frontend, proto: tcp, flags: syn})
		}
		forwarded := packet{from: f.node + ":1501", to: f.clusterIP() + ":80", proto: tcp, flags: syn}
		s.outside.reach(t, f.clusterIP(), true)
		s.link(t, "bridge").send(t, forwarded)
		s.outside.want(t, withTTL(forwarded, 63))
		s.service(t, f.clusterIP()+":90", tcp, maps.ExternalOnly, m.addr+":8090", false)
		leaves(packet{from: f.node + ":1500", to: f.clusterIP() + ":90", proto: tcp, flags: syn})
		leaves(packet{from: f.node + ":1500", to: f.clusterIP() + ":91", proto: tcp, flags: syn})
		s.service(t, f.any+":30080", tcp, maps.NodePort, m.addr+":8090", false)
		leaves(packet{from: f.node + ":1500", to: f.vip + ":30080", proto: tcp, flags: syn})
	})
}

// A node that is not configured to do so translates nothing of its own, and looks up nothing.
func TestOwnOff(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		if w.out == "" {
			return
		}
		w.service(t, f.clusterIP()+":80", tcp, maps.ClusterIP, f.pod+":8080", false)
		frame := packet{from: f.node + ":1500", to: f.clusterIP() + ":80", proto: tcp, flags: syn}.bytes()
		if verdict, out := w.run(t, w.out, frame); verdict != "pass" || !bytes.Equal(out, frame) {
			t.Errorf("%s, %x", verdict, out)
		}
	})
}

// A client without a backend is told so, and counted; but it is told nothing where only a policy
// keeps it from one.
func TestOwnRefused(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		at, k := f.clusterIP(), f.kinds()
		s.service(t, at+":80", tcp, maps.ClusterIP, "", false)
		request := packet{from: f.node + ":1500", to: at + ":80", proto: tcp, flags: syn, seq: 7}
		s.send(t, request)
		if have, want := s.hears(t, "reset", hasPorts), resetOf(request, 5)[14:]; !bytes.Equal(have, want) {
			t.Fatalf("have  %x\nwant  %x", have, want)
		}
		s.service(t, at+":80", udp, maps.ClusterIP, "", false)
		request = packet{from: f.node + ":1500", to: at + ":80", proto: udp}
		s.send(t, request)
		s.wantsICMP(t, "refusal", refusalOf(f, host(at), host(f.node), k.unreachable, k.port, 0, request.bytes()[14:]))
		s.service(t, at+":81", udp, maps.ClusterIP, f.client+":8080", false)
		s.tables.Services[s.services].Flags = maps.InternalLocal
		s.service(t, at+":82", udp, maps.LoadBalancer, f.client+":8080", false)
		s.tables.Services[s.services].Flags = maps.SourceRanges
		s.service(t, at+":83", udp, maps.ClusterIP, s.addrs[1]+":8083", true)
		for _, port := range []string{":81", ":82", ":83"} {
			request.to = at + port
			s.send(t, request)
		}
		request.from, request.to = f.node+":0", s.addrs[1]+":8083"
		s.pods[1].want(t, request) // and nothing before it
		if have := s.reasons(t); have["no-backend"] != 3 || have["source-range"] != 1 {
			t.Errorf("counted %v", have)
		}
	})
}

// A packet that does not fit the link to its backend is refused, and the node is told what fits. One
// that may be fragmented is, by the stack.
func TestOwnTooBig(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		k := f.kinds()
		s.service(t, f.clusterIP()+":80", udp, maps.ClusterIP, s.addrs[1]+":8080", true)
		s.pods[1].setMTU(t, 1300)
		for _, whole := range []bool{true, false} {
			p := packet{from: f.node + ":1500", to: f.clusterIP() + ":80", proto: udp, payload: 1400, whole: whole}
			s.send(t, p)
			if !whole && f.any != "[::]" {
				p.from, p.to, p.ttl = f.node+":0", s.addrs[1]+":8080", 63
				s.pods[1].wantPieces(t, p, 1300, 148)
				continue
			}
			s.wantsICMP(t, "too big", refusalOf(f, host(f.clusterIP()), host(f.node), k.tooBig, tooBigCode(f), 1300, p.bytes()[14:]))
		}
		p := packet{from: f.node + ":1500", to: f.clusterIP() + ":80", proto: udp, payload: 1200}
		s.send(t, p)
		p.from, p.to = f.node+":0", s.addrs[1]+":8080"
		s.pods[1].want(t, p)
		if n, want := s.counted(t, "too-big"), map[bool]uint64{false: 1, true: 2}[f.any == "[::]"]; n != want {
			t.Errorf("counted %d times, want %d", n, want)
		}
	})
}

// ICMP errors reach the sender of what they quote, quoting it as it was sent.
func TestOwnErrors(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		k := f.kinds()
		for i, m := range s.mates() {
			client, frontend, backend := f.node+":1500", addrPort(f.clusterIP(), 80+i), addrPort(m.addr, 8080+i)
			s.service(t, frontend, udp, maps.ClusterIP, backend, m.here)
			sent := packet{from: client, to: frontend, proto: udp}
			s.send(t, sent)
			arrived := sent
			arrived.from, arrived.to = m.seen(client, frontend), backend
			arrived.from = s.gets(t, m, arrived)
			answer := packet{from: backend, to: arrived.from, proto: udp}
			s.answers(t, m, answer)
			got := answer
			got.from, got.to = frontend, client
			s.wants(t, got)

			seen := netip.MustParseAddrPort(arrived.from).Addr().String()
			for _, kind := range []byte{k.unreachable, k.tooBig, k.expired} {
				code := map[bool]byte{true: 4}[kind == k.tooBig && k.tooBig == 3]
				// From the backend, about what was sent to it.
				e := message{from: host(m.addr), to: seen, kind: kind, code: code, rest: 1400, body: quoted(arrived, 8), ttl: 64}
				if m.wire == nil {
					s.put(t, e.bytes())
				} else {
					m.wire.echo(t, e)
				}
				e.from, e.to, e.body = host(f.clusterIP()), host(f.node), quoted(sent, 8)
				s.wantsICMP(t, m.what+", of the backend", e.bytes())
				// From the node, about an answer.
				e = message{from: host(f.node), to: host(f.clusterIP()), kind: kind, code: code, rest: 1400, body: quoted(got, 8), ttl: 64}
				s.put(t, e.bytes())
				e.from, e.to, e.body = seen, host(m.addr), quoted(answer, 8)
				if m.wire == nil {
					s.wantsICMP(t, m.what+", of the node", e.bytes())
				} else {
					m.wire.wantICMP(t, m.what+", of the node", e)
				}
			}
		}
		// From a router, about what it could not send on.
		sent := packet{from: f.node + ":700", to: f.clusterIP() + ":82", proto: udp}
		s.send(t, sent)
		left := sent
		left.to = addrPort(f.client, 8082)
		s.outside.want(t, left)
		e := message{from: host(s.remote), to: host(f.node), kind: k.expired, body: quoted(left, 8), ttl: 64}
		s.outside.echo(t, e)
		e.from, e.body = host(f.clusterIP()), quoted(sent, 8)
		s.wantsICMP(t, "of a router", e.bytes())
	})
}

// An address of a service answers the node's ping, if it is configured to.
func TestOwnEcho(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		k := f.kinds()
		m := message{from: host(f.node), to: host(f.clusterIP()), kind: k.echo, rest: 77<<16 | 1, body: []byte("are you there?"), ttl: 64}
		s.service(t, f.clusterIP()+":80", tcp, maps.ClusterIP, s.addrs[1]+":8080", true)
		s.put(t, m.bytes())
		s.outside.wantICMP(t, "not to be answered", m)
		addr := netip.MustParseAddr(host(f.clusterIP()))
		if err := s.tables.Svcs.Update(maps.PingKey(addr), maps.Svc{Service: s.services, Kind: maps.ClusterIP}); err != nil {
			t.Fatal(err)
		}
		s.put(t, m.bytes())
		m.from, m.to, m.kind = m.to, m.from, k.reply
		s.wantsICMP(t, "ping", m.bytes())
	})
}

// Fragmented datagrams are translated completely, in both directions.
func TestOwnFragments(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		for i, m := range s.mates() {
			client, frontend, backend := f.node+":1500", addrPort(f.clusterIP(), 80+i), addrPort(m.addr, 8080+i)
			s.service(t, frontend, udp, maps.ClusterIP, backend, m.here)
			whole := packet{from: client, to: frontend, proto: udp}
			s.send(t, whole)
			whole.from, whole.to = m.seen(client, frontend), backend
			from := s.gets(t, m, whole)
			first := packet{from: client, to: frontend, proto: udp, fragment: 0x2000, payload: 800}
			s.send(t, first)
			first.from, first.to = from, backend
			s.gets(t, m, first)
			later := datagram{from: host(f.node), to: host(f.clusterIP()), proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
			s.put(t, later.bytes())
			seen := netip.MustParseAddrPort(from).Addr().String()
			later.from, later.to = seen, host(m.addr)
			if m.wire == nil {
				s.wantsLater(t, later)
			} else {
				m.wire.wantLater(t, later)
			}
			first = packet{from: backend, to: from, proto: udp, fragment: 0x2000, payload: 800}
			s.answers(t, m, first)
			first.from, first.to = frontend, client
			s.wants(t, first)
			later = datagram{from: host(m.addr), to: seen, proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
			if m.wire == nil {
				s.put(t, later.bytes())
			} else {
				m.wire.later(t, later)
			}
			later.from, later.to = host(f.clusterIP()), host(f.node)
			s.wantsLater(t, later)
		}
	})
}

// wantsLater fails unless the fragment reaches the node's stack.
func (s *self) wantsLater(t *testing.T, d datagram) {
	t.Helper()
	want := d.bytes()[14:]
	s.hears(t, fmt.Sprintf("fragment %x", want), func(frame []byte) bool { return bytes.Equal(frame[14:], want) })
}

// Two services may share a backend: each flow gets its own port.
func TestOwnShared(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		for i, m := range s.mates() {
			froms := map[string]bool{}
			for j := range 2 {
				frontend, backend := addrPort(f.clusterIP(), 80+10*i+j), m.addr+":8080"
				s.service(t, frontend, udp, maps.ClusterIP, backend, m.here)
				there := packet{from: f.node + ":1500", to: frontend, proto: udp}
				s.send(t, there)
				there.from, there.to = f.node+":0", backend
				if m.wire == nil {
					there.from = f.clusterIP() + ":0"
				}
				from := s.gets(t, m, there)
				froms[from] = true
				back := packet{from: backend, to: from, proto: udp}
				s.answers(t, m, back)
				back.from, back.to = frontend, f.node+":1500"
				s.wants(t, back)
			}
			if len(froms) != 2 || froms[f.clusterIP()+":1500"] != (m.wire == nil) {
				t.Errorf("%s: two flows came from %v", m.what, froms)
			}
		}
	})
}

// If the node connects from a port that a client's flow to the same server has, as when netfilter
// moves its connection there, it gets another port. The ports of other flows are left alone.
func TestOwnPort(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		for i, proto := range []byte{udp, tcp, udp, tcp} {
			client, frontend, backend := addrPort(s.remote, 4000), addrPort(f.node, 30080+i), addrPort(f.client, 8080+i)
			s.service(t, addrPort(f.any, 30080+i), proto, maps.NodePort, backend, false)
			forwarded := func(flags byte) string {
				s.outside.send(t, packet{from: client, to: frontend, proto: proto, flags: flags, seq: 7})
				return s.outside.want(t, packet{from: f.snat + ":0", to: backend, proto: proto, flags: flags, seq: 7, ttl: 63})
			}
			port := forwarded(syn)
			answered := func() {
				s.outside.send(t, packet{from: backend, to: port, proto: proto, flags: syn | ack, seq: 9, ack: 8})
				s.outside.want(t, packet{from: frontend, to: client, proto: proto, flags: syn | ack, seq: 9, ack: 8, ttl: 63})
			}
			if isEstablished := i > 1; isEstablished {
				answered()
				forwarded(ack)
			}
			own := ""
			for _, flags := range []byte{syn, ack, ack | fin} {
				p := packet{from: port, to: backend, proto: proto, flags: flags, seq: 1000}
				s.send(t, p)
				p.from = f.snat + ":0"
				own = s.outside.want(t, p)
				back := packet{from: backend, to: own, proto: proto, flags: flags | ack, seq: 2000, ack: 1001}
				s.outside.send(t, back)
				back.to = port
				s.wants(t, back)
			}
			if n := netip.MustParseAddrPort(own).Port(); own == port || n < 61000 || n > 61003 {
				t.Errorf("the node was given %s, and the client had %s", own, port)
			}
			answered()
			elsewhere := packet{from: port, to: addrPort(f.client, 9090), proto: proto, flags: syn}
			s.send(t, elsewhere)
			s.outside.want(t, elsewhere)
		}
	})
}

// Packets follow the way to a backend: through another link than the one they would leave by, and
// after it changes. The kernel resolves an unknown neighbor.
func TestOwnWays(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		other := s.wire(t, "other")
		for _, proto := range []byte{tcp, udp} {
			s.service(t, f.clusterIP()+":80", proto, maps.ClusterIP, f.client+":8080", false)
			s.converse(t, s.mates()[2], f.node+":700", f.clusterIP()+":80", f.client+":8080", proto)
			p := packet{from: f.node + ":700", to: f.clusterIP() + ":80", proto: proto, flags: ack}
			left := p
			left.to = f.client + ":8080"
			for _, w := range []*wire{other, s.outside} {
				w.reach(t, f.client, true)
				flow := flowOf(p.from, p.to, proto)
				row, ok, err := maps.LookupFlow(s.maps.Ct, flow)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				row.Seen-- // as in the previous tick, while nobody follows changes
				s.plant(t, s.maps.Ct, flow, row)
				s.send(t, p)
				w.want(t, left)
			}
		}
		rig.Address(t, other.far, "far", host(s.remote)+map[bool]string{true: "/32", false: "/128"}[!strings.Contains(s.remote, "[")])
		rig.Address(t, s.netns, "other", host(f.snat)+map[bool]string{true: "/32", false: "/128"}[!strings.Contains(s.remote, "[")])
		other.reach(t, s.remote, false)
		s.service(t, f.clusterIP()+":81", udp, maps.ClusterIP, s.remote+":8080", false)
		p := packet{from: f.node + ":700", to: f.clusterIP() + ":81", proto: udp}
		s.send(t, p)
		p.to = s.remote + ":8080"
		other.want(t, p)
	})
}

// No host outside gets at a flow of the node by sending as the node. A pod can answer only for
// itself.
func TestOwnHostile(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		for i, m := range s.mates()[2:] {
			client, frontend, backend := f.node+":700", addrPort(f.clusterIP(), 80+i), addrPort(m.addr, 8080+i)
			s.service(t, frontend, tcp, maps.ClusterIP, backend, m.here)
			there := packet{from: client, to: frontend, proto: tcp, flags: syn, seq: 7}
			s.send(t, there)
			arrived := there
			arrived.from, arrived.to = m.seen(client, frontend), backend
			arrived.from = s.gets(t, m, arrived)
			rows := s.dump(t)
			forged := there
			forged.flags = rst
			s.outside.send(t, forged)
			s.pods[1].send(t, forged)
			s.pods[1].send(t, packet{from: backend, to: arrived.from, proto: tcp, flags: rst | ack, ack: 8})
			answer := packet{from: backend, to: arrived.from, proto: tcp, flags: syn | ack, seq: 1000, ack: 8}
			s.answers(t, m, answer)
			answer.from, answer.to = frontend, client
			s.wants(t, answer)
			if after := s.dump(t); len(after) != len(rows) {
				t.Errorf("%s: %d rows before, %d after", m.what, len(rows), len(after))
			}
		}
		if n := s.counted(t, "spoofed"); n != 3 {
			t.Errorf("spoofed was counted %d times at tc, want three times", n)
		}
		if n := podReasons(t, s.routerTwoPods)["spoofed"]; n != 6 {
			t.Errorf("spoofed was counted %d times at pods' devices, want six times", n)
		}
	})
}

// A monitor gets an event for the choice of a backend and for a refusal.
func TestOwnEvents(t *testing.T) {
	own(t, func(t *testing.T, s *self, f family) {
		events := s.routerTwoPods.events(t, maps.Watch{Reasons: everything})
		s.service(t, f.clusterIP()+":80", udp, maps.ClusterIP, f.client+":8080", false)
		s.service(t, f.clusterIP()+":81", udp, maps.ClusterIP, "", false)
		client := f.node + ":700"
		for _, port := range []string{":80", ":81"} {
			s.send(t, packet{from: client, to: f.clusterIP() + port, proto: udp})
		}
		s.outside.want(t, packet{from: client, to: f.client + ":8080", proto: udp})
		k := f.kinds()
		refused := packet{from: client, to: f.clusterIP() + ":81", proto: udp}
		s.wantsICMP(t, "refusal", refusalOf(f, host(f.clusterIP()), host(f.node), k.unreachable, k.port, 0, refused.bytes()[14:]))
		want := []string{
			fmt.Sprintf("%d/0 leaving %s > %s = %s > %s", bpf.MapsHookHOOK_TC, client, f.clusterIP()+":80", client, f.client+":8080"),
			fmt.Sprintf("%d/%d dropped leaving %s > %s", bpf.MapsHookHOOK_TC, bpf.MapsReasonREASON_NO_BACKEND, client, f.clusterIP()+":81"),
		}
		if diff := cmp.Diff(want, eventsText(t, events)); diff != "" {
			t.Errorf("-want +have:\n%s", diff)
		}
	})
}
