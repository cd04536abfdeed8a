package bpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// dials tells the programs that a pod has sent packets to a service before.
func (h *routerTwoPods) dials(t *testing.T) {
	t.Helper()
	if err := h.maps.PacketClients.Put(uint32(0), uint32(1)); err != nil {
		t.Fatal(err)
	}
}

// clusterIP returns an address that only services have.
func (f family) clusterIP() string {
	return map[bool]string{true: "[fd03::10]", false: "10.96.0.10"}[f.any == "[::]"]
}

// onNodeWithPods runs a story on a node with two pods whose pods send packets to services, past the stack and through
// it.
func onNodeWithPods(t *testing.T, masquerade uint16, story func(t *testing.T, h *routerTwoPods, f family)) {
	t.Helper()
	rig.Root(t)
	for name, f := range families() {
		for _, bypass := range []uint32{0, 1} {
			t.Run(name+map[uint32]string{0: " by the stack", 1: " past it"}[bypass], func(t *testing.T) {
				t.Parallel()
				config := standardConfig()
				config.Bypass, config.Masquerade = bypass, masquerade
				h := newRouterTwoPodsOf(t, f, config)
				h.outside.reach(t, h.remote, true)
				h.outside.reach(t, f.client, true)
				if masquerade == 0 {
					h.native(t, map[bool]string{true: "::/0", false: "0.0.0.0/0"}[f.any == "[::]"])
				}
				story(t, h, f)
			})
		}
	}
}

// end is a backend of a service that pod0 dials: where it is, and which client it sees.
type end struct {
	what   string
	wire   *wire
	addr   string
	client string // "" for one of the node's ports
}

func (h *routerTwoPods) ends(f family) []end {
	return []end{
		{"another pod", h.pods[1], h.addrs[1], h.addrs[0]},
		{"on another node", h.outside, f.client, h.addrs[0]},
		{"itself", h.pods[0], h.addrs[0], ""},
	}
}

// converse has pod0 send packets from its port to the frontend, and the backend answer each, until
// both have ended.
func (h *routerTwoPods) converse(t *testing.T, f family, to end, client, frontend, backend string, proto byte) {
	t.Helper()
	from := to.client
	if from == "" {
		from = f.snat + ":0"
	} else {
		from += client[strings.LastIndex(client, ":"):]
	}
	for i, flags := range []byte{syn, ack, ack, ack | fin, ack} {
		there := packet{from: client, to: frontend, proto: proto, flags: flags, seq: 7, ack: 1001, payload: 20 + 300*i}
		if flags == syn {
			there.ack = 0
		}
		if proto == sctp {
			there.ack = 1000
		}
		h.pods[0].send(t, there)
		there.from, there.to = from, backend
		from = to.wire.want(t, withTTL(there, 63))
		back := packet{from: backend, to: from, proto: proto, flags: flags | ack, seq: 1000, ack: 8, payload: 10 + 300*i}
		to.wire.send(t, back)
		back.from, back.to = frontend, client
		h.pods[0].want(t, withTTL(back, 63))
	}
	if to.client == "" {
		if n := netip.MustParseAddrPort(from).Port(); n < 61000 || n > 61003 {
			t.Errorf("the pod saw itself come from port %d, which is not in the range", n)
		}
	}
}

// A pod's packets to a service reach its backend, wherever that is, and the answers come from the
// service's address, even if the pod is the backend itself, which then sees the node as its client.
func TestPodService(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		for i, to := range h.ends(f) {
			for j, proto := range []byte{tcp, udp, sctp} {
				frontend, backend := addrPort(f.clusterIP(), 80+10*i+j), addrPort(to.addr, 8080)
				h.service(t, frontend, proto, maps.ClusterIP, backend, to.what != "on another node")
				h.converse(t, f, to, addrPort(h.addrs[0], 1000), frontend, backend, proto)
			}
		}
		if open, half := h.rows(t); open != 18 || half != 0 {
			t.Errorf("%d rows are established and %d half open, want 18 and 0", open, half)
		}
	})
}

// A pod reaches every frontend of a service, whether it is open to clients outside and whatever the
// policy for them.
func TestPodServiceFrontends(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		to := h.ends(f)[1]
		for i, c := range []struct {
			row, dialed string
			kind        uint32
			flags       uint8
		}{
			{f.any, f.node, maps.NodePort, 0},
			{f.any, f.snat, maps.NodePort, maps.ExternalLocal}, // not open to clients outside
			{f.any, f.node, maps.HostPort, 0},
			{f.clusterIP(), f.clusterIP(), maps.ExternalIP, maps.ExternalLocal},
			{f.clusterIP(), f.clusterIP(), maps.LoadBalancer, maps.ExternalLocal},
		} {
			backend := addrPort(to.addr, 8080+i)
			h.service(t, addrPort(c.row, 30080+i), udp, c.kind, backend, false)
			h.tables.Services[h.services].Flags = c.flags
			h.converse(t, f, to, addrPort(h.addrs[0], 1000), addrPort(c.dialed, 30080+i), backend, udp)
		}
		// But not one that is only for clients outside, nor a port of another node.
		h.service(t, f.clusterIP()+":30090", udp, maps.ExternalOnly, to.addr+":8090", false)
		h.outside.reach(t, f.clusterIP(), true)
		for _, alone := range []string{f.clusterIP() + ":30090", h.remote + ":30080"} {
			out := packet{from: h.addrs[0] + ":1000", to: alone, proto: udp}
			h.pods[0].send(t, out)
			h.outside.want(t, withTTL(out, 63))
		}
	})
}

// A client without a backend is told so, and counted; but it is told nothing where only a policy
// keeps it from one.
func TestPodServiceRefused(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		pod, at := h.pods[0], f.clusterIP()
		reset := func(frame []byte) []byte { copy(frame, pod.macs(false)); return frame }
		h.service(t, at+":80", tcp, maps.ClusterIP, "", false)
		request := packet{from: h.addrs[0] + ":1000", to: at + ":80", proto: tcp, flags: syn, seq: 7}
		pod.send(t, request)
		if have, want := pod.next(t, 5*time.Second), reset(resetOf(request, 5)); !bytes.Equal(have, want) {
			t.Fatalf("have  %x\nwant  %x", have, want)
		}
		h.service(t, at+":80", udp, maps.ClusterIP, "", false)
		request = packet{from: h.addrs[0] + ":1000", to: at + ":80", proto: udp}
		k := f.kinds()
		pod.send(t, request)
		want := reset(refusalOf(f, host(at), host(h.addrs[0]), k.unreachable, k.port, 0, request.bytes()[14:]))
		if have := pod.icmp(t, k.unreachable); !bytes.Equal(have, want) {
			t.Fatalf("have  %x\nwant  %x", have, want)
		}
		h.service(t, at+":81", udp, maps.ClusterIP, f.client+":8080", false)
		h.tables.Services[h.services].Flags = maps.InternalLocal
		h.service(t, at+":82", udp, maps.LoadBalancer, f.client+":8080", false)
		h.tables.Services[h.services].Flags = maps.SourceRanges
		h.service(t, at+":83", udp, maps.ClusterIP, h.addrs[1]+":8083", true)
		for _, port := range []string{":81", ":82", ":83"} {
			request.to = at + port
			pod.send(t, request)
		}
		request.to = h.addrs[1] + ":8083"
		h.pods[1].want(t, withTTL(request, 63)) // and nothing before it
		have := podReasons(t, h)
		if have["no-backend"] != 3 || have["source-range"] != 1 {
			t.Errorf("counted %v", have)
		}
	})
}

// Two services may share a backend: the pod's port is then replaced by a port of the node's.
func TestPodServiceShared(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		ports := map[string]bool{}
		for i := range 3 {
			frontend, backend := addrPort(f.clusterIP(), 80+i), h.addrs[1]+":8080"
			h.service(t, frontend, udp, maps.ClusterIP, backend, true)
			there := packet{from: h.addrs[0] + ":1000", to: frontend, proto: udp}
			h.pods[0].send(t, there)
			there.from, there.to = h.addrs[0]+":0", backend
			from := h.pods[1].want(t, withTTL(there, 63))
			ports[from] = true
			back := packet{from: backend, to: from, proto: udp}
			h.pods[1].send(t, back)
			back.from, back.to = frontend, h.addrs[0]+":1000"
			h.pods[0].want(t, withTTL(back, 63))
		}
		if len(ports) != 3 || !ports[h.addrs[0]+":1000"] {
			t.Errorf("three flows came from %v", ports)
		}
	})
}

// A backend that has no route to pods sees the node, and its answers still come from the service.
func TestPodServiceMasqueraded(t *testing.T) {
	onNodeWithPods(t, 1, func(t *testing.T, h *routerTwoPods, f family) {
		for i, proto := range []byte{tcp, udp} {
			frontend, backend := addrPort(f.clusterIP(), 80+i), f.client+":8080"
			h.service(t, frontend, proto, maps.ClusterIP, backend, false)
			to := end{"outside", h.outside, f.client, ""}
			h.converse(t, f, to, h.addrs[0]+":1000", frontend, backend, proto)
		}
	})
}

// ICMP errors reach the sender of what they quote, quoting it as it was sent.
func TestPodServiceErrors(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		k := f.kinds()
		for i, to := range h.ends(f) {
			frontend, backend := addrPort(f.clusterIP(), 80+i), to.addr+":8080"
			h.service(t, frontend, udp, maps.ClusterIP, backend, to.what != "on another node")
			sent := packet{from: h.addrs[0] + ":1000", to: frontend, proto: udp}
			h.pods[0].send(t, sent)
			arrived := sent
			arrived.from, arrived.to = f.snat+":0", backend
			if to.client != "" {
				arrived.from = to.client + ":1000"
			}
			arrived.from = to.wire.want(t, withTTL(arrived, 63))
			answer := packet{from: backend, to: arrived.from, proto: udp}
			to.wire.send(t, answer)
			got := answer
			got.from, got.to = frontend, sent.from
			h.pods[0].want(t, withTTL(got, 63))

			client := netip.MustParseAddrPort(arrived.from).Addr().String()
			for _, kind := range []byte{k.unreachable, k.tooBig, k.expired} {
				code := map[bool]byte{true: 4}[kind == k.tooBig && k.tooBig == 3]
				// From the backend, about what was sent to it.
				m := message{from: host(to.addr), to: client, kind: kind, code: code, rest: 1400, body: quoted(arrived, 8), ttl: 64}
				to.wire.echo(t, m)
				m.from, m.to, m.body, m.ttl = host(f.clusterIP()), host(h.addrs[0]), quoted(sent, 8), 63
				h.pods[0].wantICMP(t, to.what+", of the backend", m)
				// From the pod, about an answer.
				m = message{from: host(h.addrs[0]), to: host(f.clusterIP()), kind: kind, code: code, rest: 1400, body: quoted(got, 8), ttl: 64}
				h.pods[0].echo(t, m)
				m.from, m.to, m.body, m.ttl = client, host(to.addr), quoted(answer, 8), 63
				to.wire.wantICMP(t, to.what+", of the pod", m)
			}
		}
		// From a router, about what it could not send on.
		sent := packet{from: h.addrs[0] + ":1000", to: f.clusterIP() + ":81", proto: udp}
		left := sent
		left.to = f.client + ":8080"
		m := message{from: host(h.remote), to: host(h.addrs[0]), kind: k.expired, body: quoted(left, 8), ttl: 64}
		h.outside.echo(t, m)
		m.from, m.body, m.ttl = host(f.clusterIP()), quoted(sent, 8), 63
		h.pods[0].wantICMP(t, "of a router", m)
	})
}

// wantICMP fails unless the message is the next of its kind to come out.
func (w *wire) wantICMP(t *testing.T, what string, m message) {
	t.Helper()
	have, want := w.icmp(t, m.kind), m.bytes()
	copy(want, w.macs(false))
	if !bytes.Equal(have, want) {
		t.Fatalf("%s:\nhave  %x\nwant  %x", what, have, want)
	}
}

// An address of a service answers a pod's ping, if it is configured to.
func TestPodServiceEcho(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		k := f.kinds()
		h.service(t, f.clusterIP()+":80", tcp, maps.ClusterIP, h.addrs[1]+":8080", true)
		addr := netip.MustParseAddr(host(f.clusterIP()))
		if err := h.tables.Svcs.Update(maps.PingKey(addr), maps.Svc{Service: h.services, Kind: maps.ClusterIP}); err != nil {
			t.Fatal(err)
		}
		m := message{from: host(h.addrs[0]), to: host(f.clusterIP()), kind: k.echo, rest: 77<<16 | 1, body: []byte("are you there?"), ttl: 64}
		h.pods[0].echo(t, m)
		m.from, m.to, m.kind = m.to, m.from, k.reply
		h.pods[0].wantICMP(t, "ping", m)
	})
}

// Fragmented datagrams are translated completely, in both directions.
func TestPodServiceFragments(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		for i, to := range h.ends(f) {
			frontend, backend := addrPort(f.clusterIP(), 80+i), to.addr+":8080"
			h.service(t, frontend, udp, maps.ClusterIP, backend, to.what != "on another node")
			client := h.addrs[0] + ":1000"
			whole := packet{from: client, to: frontend, proto: udp}
			h.pods[0].send(t, whole)
			whole.from, whole.to = f.snat+":0", backend
			if to.client != "" {
				whole.from = client
			}
			from := to.wire.want(t, withTTL(whole, 63))
			first := packet{from: client, to: frontend, proto: udp, fragment: 0x2000, payload: 800}
			h.pods[0].send(t, first)
			first.from, first.to = from, backend
			to.wire.want(t, withTTL(first, 63))
			later := datagram{from: host(h.addrs[0]), to: host(f.clusterIP()), proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
			h.pods[0].later(t, later)
			seen := netip.MustParseAddrPort(from).Addr().String()
			later.from, later.to, later.ttl = seen, host(to.addr), 63
			to.wire.wantLater(t, later)
			first = packet{from: backend, to: from, proto: udp, fragment: 0x2000, payload: 800}
			to.wire.send(t, first)
			first.from, first.to = frontend, client
			h.pods[0].want(t, withTTL(first, 63))
			later = datagram{from: host(to.addr), to: seen, proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
			to.wire.later(t, later)
			later.from, later.to, later.ttl = host(f.clusterIP()), host(h.addrs[0]), 63
			h.pods[0].wantLater(t, later)
		}
	})
}

// Nobody else gets at the flow of a pod: not by sending as the pod, nor by sending as its backend
// what the backend did not send.
func TestPodServiceHostile(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		frontend, backend := f.clusterIP()+":80", f.client+":8080"
		h.service(t, frontend, tcp, maps.ClusterIP, backend, false)
		there := packet{from: h.addrs[0] + ":1000", to: frontend, proto: tcp, flags: syn, seq: 7}
		h.pods[0].send(t, there)
		left := there
		left.to = backend
		h.outside.want(t, withTTL(left, 63))
		rows := h.dump(t)
		forged := there
		forged.flags = rst
		h.outside.send(t, forged)
		h.pods[1].send(t, forged)
		answered := packet{from: backend, to: h.addrs[0] + ":1000", proto: tcp, flags: rst | ack, ack: 8}
		h.pods[1].send(t, answered)
		answer := packet{from: backend, to: h.addrs[0] + ":1000", proto: tcp, flags: syn | ack, seq: 1000, ack: 8}
		h.outside.send(t, answer)
		answer.from = frontend
		h.pods[0].want(t, withTTL(answer, 63))
		if after := h.dump(t); len(after) != len(rows) {
			t.Errorf("%d rows before, %d after", len(rows), len(after))
		}
		if n := h.counted(t, "pod-source"); n != 1 {
			t.Errorf("pod-source was counted %d times at tc, want once", n)
		}
		if n := podReasons(t, h)["spoofed"]; n != 2 {
			t.Errorf("spoofed was counted %d times at pods' devices, want twice", n)
		}
	})
}

// A monitor gets an event for the choice of a backend and for a refusal, with the pod's device.
func TestPodServiceEvents(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		events := h.events(t, maps.Watch{Reasons: everything})
		h.service(t, f.clusterIP()+":80", udp, maps.ClusterIP, f.client+":8080", false)
		h.service(t, f.clusterIP()+":81", udp, maps.ClusterIP, "", false)
		for _, port := range []string{":80", ":81"} {
			h.pods[0].send(t, packet{from: h.addrs[0] + ":1000", to: f.clusterIP() + port, proto: udp})
		}
		h.pods[0].icmp(t, f.kinds().unreachable)
		client := h.addrs[0] + ":1000"
		want := []string{
			fmt.Sprintf("%d/0 %s > %s = %s > %s", bpf.MapsHookHOOK_POD, client, f.clusterIP()+":80", client, f.client+":8080"),
			fmt.Sprintf("%d/%d dropped %s > %s", bpf.MapsHookHOOK_POD, bpf.MapsReasonREASON_NO_BACKEND, client, f.clusterIP()+":81"),
		}
		if diff := cmp.Diff(want, eventsText(t, events)); diff != "" {
			t.Errorf("-want +have:\n%s", diff)
		}
	})
}
