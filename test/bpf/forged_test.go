package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// forgery is a node with the victim, a Service at the family's virtual address, and another Service
// of which an accomplice is the backend, on the same node.
type forgery struct {
	*bareNode
	f          family
	m          wrapping
	accomplice string
	dialed     packet // what the victim's client sends
}

func newForgery(t *testing.T, w *bareNode, f family, m wrapping, proto byte) *forgery {
	accomplice := map[string]string{"0.0.0.0": "10.244.1.66", "[::]": "[fd02::66]"}[f.any] + ":6666"
	w.service(t, f.any+":30081", proto, maps.NodePort, accomplice, true)
	w.hosts(t, accomplice)
	w.service(t, f.vip+":80", proto, maps.LoadBalancer, f.pod+":8080", true)
	w.hosts(t, f.pod+":8080")
	w.leaves(t)
	return &forgery{w, f, m, accomplice, packet{from: f.client + ":4000", to: f.vip + ":80", proto: proto, flags: syn}}
}

// reaches fails unless the client's packet gets to the victim.
func (g *forgery) reaches(t *testing.T) {
	t.Helper()
	want := g.dialed
	want.to = g.f.pod + ":8080"
	g.unwrapped(t, "the client's own packet", g.dialed.bytes(), want, "")
}

func eachForgery(t *testing.T, story func(t *testing.T, g *forgery)) {
	t.Helper()
	for _, m := range wrappings() {
		for _, proto := range []byte{tcp, udp} {
			eachTC(t, func(t *testing.T, w *bareNode, f family) { story(t, newForgery(t, w, f, m, proto)) })
		}
	}
}

// Who is no node may not say which backend gets a client's packets: what looks forwarded is left
// alone, begins no flow, and the client reaches its Service. An option has no sender; the pair of
// Service and backend protects that.
func TestForgedByStrangers(t *testing.T) {
	eachForgery(t, func(t *testing.T, g *forgery) {
		if g.m.name == "opt" {
			return
		}
		// This node's own address is no other node's.
		for _, stranger := range []string{g.f.client, g.f.pod, g.f.node, map[string]string{"0.0.0.0": "10.244.7.7", "[::]": "[::]"}[g.f.any]} {
			for _, backend := range []string{g.accomplice, g.f.pod + ":8080"} {
				g.unwrapped(t, "from "+stranger+" for "+backend, g.m.make(stranger, backend, g.dialed.bytes()), packet{}, "next")
			}
		}
		if open, half := g.rows(t); open+half != 0 {
			t.Errorf("%d rows are established and %d half open, want none", open, half)
		}
		g.reaches(t)
	})
}

// A node may only name a backend that the dialed Service has. Another one is given back to that
// node, and where no node is known this one chooses from the Service's own.
func TestForgedBackend(t *testing.T) {
	eachForgery(t, func(t *testing.T, g *forgery) {
		frame := g.m.make(g.f.snat, g.accomplice, g.dialed.bytes())
		if g.m.name == "opt" {
			want := g.dialed
			want.to = g.f.pod + ":8080"
			g.unwrapped(t, "with an option", frame, want, "")
			g.reaches(t)
			return
		}
		before := g.counted(t, "dsr-returned")
		if verdict, _ := g.run(t, g.in, frame); verdict == "drop" || g.counted(t, "dsr-returned") != before+1 {
			t.Errorf("%s, want it given back; counted: %v", verdict, g.reasons(t))
		}
		if open, half := g.rows(t); open+half != 0 {
			t.Errorf("%d rows are established and %d half open, want none", open, half)
		}
		g.reaches(t)
	})
}

// A backend that a Service no longer has keeps its flows, and gets no new ones.
func TestBackendLeaves(t *testing.T) {
	eachForgery(t, func(t *testing.T, g *forgery) {
		pod := g.f.pod + ":8080"
		want := g.dialed
		want.to = pod
		g.unwrapped(t, "before", g.m.make(g.f.snat, pod, g.dialed.bytes()), want, "")
		rig.Address(t, g.netns, "lo", map[string]string{"0.0.0.0": "10.244.1.5/32", "[::]": "fd02::5/128"}[g.f.any])
		g.leave(t, pod)
		next, to := g.dialed, want
		next.flags, to.flags = ack, ack
		g.unwrapped(t, "after", g.m.make(g.f.snat, pod, next.bytes()), to, "")
		if g.m.name != "opt" {
			before := g.counted(t, "dsr-returned")
			g.dialed.from = g.f.client + ":4001"
			if verdict, _ := g.run(t, g.in, g.m.make(g.f.snat, pod, g.dialed.bytes())); verdict == "drop" || g.counted(t, "dsr-returned") != before+1 {
				t.Errorf("a new flow: %s, want it given back; counted: %v", verdict, g.reasons(t))
			}
		}
	})
}

// Tunnels between nodes and pods are nobody's business unless they lead to a frontend, whatever is
// inside.
func TestForgedInside(t *testing.T) {
	eachForgery(t, func(t *testing.T, g *forgery) {
		if g.m.name == "opt" {
			return
		}
		elsewhere := packet{from: g.f.client + ":4000", to: g.f.client + ":80", proto: g.dialed.proto, flags: syn}
		report := message{from: host(g.f.client), to: host(g.f.client), kind: g.f.kinds().tooBig, code: tooBigCode(g.f), rest: 1400,
			body: quoted(packet{from: g.f.vip + ":80", to: g.f.client + ":4000", proto: g.dialed.proto}, 8)}
		later := elsewhere
		later.fragment = 3
		inner := map[string][]byte{"a packet": elsewhere.bytes(), "an error": report.bytes(), "a fragment": later.bytes()}
		if g.f.any == "0.0.0.0" {
			inner["options"] = optioned(elsewhere.bytes())
		}
		for name, frame := range inner {
			g.unwrapped(t, name, g.m.make(g.f.snat, g.f.pod+":8080", frame), packet{}, "next")
		}
	})
}

// A node that masquerades what clients and pods send gives it none of the ports from which nodes
// send Geneve.
func TestForgedGeneve(t *testing.T) {
	eachForgery(t, func(t *testing.T, g *forgery) {
		if g.m.name != "geneve" {
			return
		}
		for _, port := range []uint16{1024, 29999, 61000} {
			frame := g.m.make(g.f.snat, g.accomplice, g.dialed.bytes())
			binary.BigEndian.PutUint16(portAt(frame), port)
			g.unwrapped(t, "from another port", frame, packet{}, "next")
		}
		g.reaches(t)
	})
}

// While nodes are upgraded, Geneve may come from the ports that an older version sent from.
func TestGeneveFromAnyPort(t *testing.T) {
	config := standardConfig()
	config.AnySourcePort = 1
	for _, m := range wrappings() {
		if m.name != "geneve" {
			continue
		}
		eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
			g := newForgery(t, w, f, m, tcp)
			pod := g.f.pod + ":8080"
			want := g.dialed
			want.to = pod
			frame := m.make(g.f.snat, pod, g.dialed.bytes())
			binary.BigEndian.PutUint16(portAt(frame), 50000)
			g.unwrapped(t, "from an older node's port", frame, want, "")
		})
	}
}

// What seems to be forwarded finds no flow but those that clients began: nobody forwards answers. That
// holds where the port that an answer comes to is a frontend's too, so that it is unwrapped.
func TestForgedAnswer(t *testing.T) {
	eachForgery(t, func(t *testing.T, g *forgery) {
		server, masqueraded := g.f.client+":443", g.f.node+":61000"
		answer := packet{from: server, to: masqueraded, proto: g.dialed.proto, flags: ack}
		g.unwrapped(t, "an answer", g.m.make(g.f.snat, g.accomplice, answer.bytes()), packet{},
			map[string]string{"ipip": "next", "geneve": "next", "opt": "stray"}[g.m.name])

		backend := map[string]string{"0.0.0.0": "10.244.2.5", "[::]": "[fd03::5]"}[g.f.any] + ":8080"
		g.service(t, g.f.any+":30090", g.dialed.proto, maps.NodePort, backend, false)
		request := packet{from: g.f.client + ":4001", to: g.f.node + ":30090", proto: g.dialed.proto, flags: syn}
		_, out := g.run(t, g.in, request.bytes())
		snat := g.f.snat + ":" + portOf(out, g.f)
		g.service(t, snat, g.dialed.proto, maps.LoadBalancer, g.accomplice, true)
		g.hosts(t, g.accomplice)
		answer = packet{from: backend, to: snat, proto: g.dialed.proto, flags: syn | ack, seq: 1000, ack: 1}
		forged := g.m.make(g.f.snat, g.accomplice, answer.bytes())
		g.unwrapped(t, "an answer of a flow that is half open", forged, packet{}, "stray")
		request.flags, request.ack = ack, 1001
		g.run(t, g.in, answer.bytes())
		g.run(t, g.in, request.bytes())
		if open, half := g.rows(t); open != 2 || half != 0 {
			t.Errorf("%d rows are established and %d half open, want 2 and 0; counted: %v", open, half, g.reasons(t))
		}
		g.unwrapped(t, "an answer of an established flow", forged, packet{}, "stray")
	})
}

// Where forwarded packets are not accepted, nothing is unwrapped.
func TestForwardsNotAccepted(t *testing.T) {
	config := standardConfig()
	config.DsrAccept = 0
	for _, m := range wrappings() {
		eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
			g := newForgery(t, w, f, m, tcp)
			g.unwrapped(t, "forwarded", m.make(f.snat, f.pod+":8080", g.dialed.bytes()), packet{}, "next")
		})
	}
}

// leave takes the last added service's backend away.
func (w *bareNode) leave(t *testing.T, backend string) {
	t.Helper()
	at := netip.MustParseAddrPort(backend)
	if err := w.tables.Svcs.Delete([]maps.SvcKey{maps.HostedKey(at, w.services), maps.HostedAddrKey(at.Addr())}); err != nil {
		t.Fatal(err)
	}
}

// optioned adds a router alert to an IPv4 packet.
func optioned(frame []byte) []byte {
	frame = append(append(bytes.Clone(frame[:34]), 148, 4, 0, 0), frame[34:]...)
	frame[14]++
	binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
	frame[24], frame[25] = 0, 0
	binary.BigEndian.PutUint16(frame[24:], sum16(frame[14:38]))
	return frame
}

// forgedByPod are packets of a pod, and whether another node would take them for forwarded ones.
func forgedByPod(pod, other string, f family) map[string]struct {
	frame  []byte
	forged bool
} {
	type sentByPod = struct {
		frame  []byte
		forged bool
	}
	to := func(at string) []byte {
		return packet{from: f.client + ":4000", to: at, proto: tcp, flags: syn}.bytes()
	}
	vip, far := to(f.vip+":80"), to(f.client+":80")
	nodePort := func(at string) []byte { return inIPIP(pod, other+":6666", to(at+":30080")) }
	class := inGeneve(pod, other+":80", vip)
	binary.BigEndian.PutUint16(class[len(class)-len(vip)-8:], 0x0102) // of the option
	list := map[string]sentByPod{
		"ip in ip to a frontend":          {inIPIP(pod, other+":6666", vip), true},
		"ip in ip to a frontend, no port": {inIPIP(pod, other+":0", vip), true},
		"geneve of our class":             {inGeneve(pod, other+":6666", vip), true},
		"geneve of our class, elsewhere":  {inGeneve(pod, other+":6666", far), true},
		"an option of ours":               {withOption(pod, other+":6666", packet{from: pod + ":4000", to: f.vip + ":80", proto: tcp, flags: syn}.bytes()), true},
		"to the node":                     {inIPIP(pod, f.node+":6666", vip), true},
		"ip in ip to a node's NodePort":   {nodePort(map[string]string{"0.0.0.0": "192.0.2.2", "[::]": "[2001:db8::2]"}[f.any]), true},
		"to this node's NodePort":         {nodePort(f.node), true},
		"to that number elsewhere":        {nodePort(f.client), false},
		"ip in ip elsewhere":              {inIPIP(pod, other+":6666", far), false},
		"geneve of another class":         {class, false},
		"vxlan to another pod":            {packet{from: pod + ":4000", to: other + ":8472", proto: udp, payload: 100}.bytes(), false},
		"to another pod's geneve":         {packet{from: pod + ":4000", to: other + ":6081", proto: udp, payload: 100}.bytes(), false},
		"a connection to that port":       {packet{from: pod + ":4000", to: other + ":6081", proto: tcp, flags: syn}.bytes(), false},
	}
	if f.any == "0.0.0.0" {
		list["a router alert"] = sentByPod{optioned(packet{from: pod + ":4000", to: other + ":80", proto: tcp, flags: syn}.bytes()), false}
		list["options inside, to a frontend"] = sentByPod{inIPIP(pod, other+":6666", optioned(vip)), true}
		gre := packet{from: pod + ":0", to: other + ":0", proto: udp, payload: 40}.bytes()
		gre[23] = 47
		gre[24], gre[25] = 0, 0
		binary.BigEndian.PutUint16(gre[24:], sum16(gre[14:34]))
		list["gre"] = sentByPod{gre, false}
	}
	return list
}

// A pod sends nothing by which its node would look as if it had forwarded it, even if its source is
// not checked; and its own tunnels get through.
func TestForgedByPods(t *testing.T) {
	for _, unchecked := range []bool{false, true} {
		w := newBareNodeTwoPods(t, standardConfig(), unchecked)
		for name, f := range families() {
			w.service(t, f.vip+":80", tcp, maps.LoadBalancer, "", false)
			w.service(t, f.any+":30080", tcp, maps.NodePort, "", false)
			pod, other := brackets(map[string]string{"v4": pod4, "v6": pod6}[name]), brackets(map[string]string{"v4": other4, "v6": other6}[name])
			for what, s := range forgedByPod(pod, other, f) {
				before := w.counted(t, "forged")
				frame := sent{frame: s.frame}.bytes()
				verdict, out := w.run(t, w.in, frame)
				if dropped := w.counted(t, "forged") - before; s.forged != (dropped == 1) || s.forged != (verdict == "drop") {
					t.Errorf("%s, unchecked %t: %s: %s, dropped %d as forged, want that %t; counted: %v", name, unchecked, what, verdict, dropped, s.forged, w.reasons(t))
				} else if diff := cmp.Diff(frame, out); diff != "" {
					t.Errorf("%s: %s was changed (-want +have):\n%s", name, what, diff)
				}
			}
		}
	}
}
