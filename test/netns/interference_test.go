package netns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// What sockets see must not depend on what another pod's sockets do, as in test/twin for packets. Two
// pods of one node dial the same services. One of them does the same again and again, alone and then
// with the calls of the other in between: each of its calls must end in the same way, with the same
// server and peer. Services that take turns among all clients are left out: whoever dials one moves
// everybody on.
const (
	honestCalls = 250
	hostileEach = 25 // calls of the other pod before each of them
)

// The services by what is different about them.
var (
	alone4   = netip.MustParseAddrPort("127.66.1.1:53")
	alone6   = netip.MustParseAddrPort("[fd00:96::1:1]:53")
	twin4    = netip.MustParseAddrPort("127.66.1.2:53") // with the same backend
	hashed4  = netip.MustParseAddrPort("127.66.1.3:53")
	kept4    = netip.MustParseAddrPort("127.66.1.4:53") // with session affinity
	empty4   = netip.MustParseAddrPort("127.66.1.5:53")
	external = netip.MustParseAddrPort("127.66.1.6:53") // not for pods
	nobody4  = netip.MustParseAddrPort("127.66.9.9:53")
)

func dialedServices() []netip.AddrPort {
	return []netip.AddrPort{alone4, alone6, twin4, hashed4, kept4, empty4, external, nobody4, back4[0], back6}
}

// addShared gives a node these services, for TCP and for UDP.
func addShared(n *node) {
	for _, proto := range []model.Protocol{model.TCP, model.UDP} {
		n.add(service{vip: alone4, proto: proto, backends: back4[:1]})
		n.add(service{vip: alone6, proto: proto, backends: []netip.AddrPort{back6}})
		n.add(service{vip: twin4, proto: proto, backends: back4[:1]})
		n.add(service{vip: hashed4, proto: proto, algorithm: bpf.MapsAlgorithmALGORITHM_SOURCE_HASH, backends: back4})
		n.add(service{vip: kept4, proto: proto, algorithm: bpf.MapsAlgorithmALGORITHM_SOURCE_HASH, backends: back4, affinity: 3600})
		n.add(service{vip: empty4, proto: proto})
		n.add(service{vip: external, proto: proto, kind: maps.ExternalOnly, backends: back4[:1]})
	}
}

// caller is a pod with two processes: one dials, the other has sockets that stay open.
type caller struct {
	*rand.Rand
	dials   *pod
	sockets *program
	open    []int
	held    []int // connections
}

func newCaller(t *testing.T, n *node, ns *rig.Netns, seed uint64) *caller {
	t.Helper()
	c := &caller{Rand: rand.New(rand.NewPCG(seed, 0)), dials: &pod{t: t, process: rig.NewChild(t, n.cgroup, ns, "pod")},
		sockets: newProgram(t, n.cgroup, ns)}
	for _, dual := range []bool{false, true, false, true} {
		c.open = append(c.open, c.sockets.udp(alone4, dual))
	}
	c.open = append(c.open, c.sockets.udp(alone6, false))
	return c
}

func (c *caller) serve() {
	c.dials.listen(append(back4, back6)...)
	c.sockets.serve(append(back4, back6)...)
}

// hold opens connections that stay.
func (c *caller) hold() {
	for _, to := range []netip.AddrPort{alone4, twin4, hashed4, kept4, alone6} {
		c.sockets.sockets++
		c.held = append(c.held, c.sockets.sockets)
		c.sockets.must(op{Call: "open", Socket: c.sockets.sockets, Addr: to, TCP: true})
		c.sockets.must(op{Call: "connect", Socket: c.sockets.sockets, Addr: to})
	}
}

// pick returns a socket that stays open, and an address that it can reach.
func (c *caller) pick() (socket int, to netip.AddrPort) {
	list := dialedServices()
	n := c.IntN(len(c.open))
	for to = list[c.IntN(len(list))]; to.Addr().Is6() && n%2 == 0 && n < 4; {
		to = list[c.IntN(len(list))]
	}
	if n == 4 {
		to = []netip.AddrPort{alone6, back6}[c.IntN(2)]
	}
	return c.open[n], to
}

// call makes the next call, and returns what its process sees.
func (c *caller) call() string {
	list := dialedServices()
	switch c.IntN(5) {
	case 0:
		socket := c.held[c.IntN(len(c.held))]
		peer := c.sockets.do(op{Call: "peer", Socket: socket})
		return fmt.Sprintf("connection %d is to %s: %v", socket, peer.Addr, peer.Errno)
	case 1:
		o := order{Dial: list[c.IntN(len(list))], Dual: c.IntN(2) == 0}
		a := c.dials.do(o)
		return fmt.Sprintf("dials %s: %v, %s as %s", o.Dial, a.Errno, a.Server, a.Peer)
	case 2:
		o := order{Dial: list[c.IntN(5)], Redial: list[c.IntN(5)], Dual: true, UDP: true}
		a := c.dials.do(o)
		return fmt.Sprintf("dials %s and %s: %v, %s as %s", o.Dial, o.Redial, a.Errno, a.Server, a.Peer)
	case 3:
		socket, to := c.pick()
		out := c.sockets.do(op{Call: "connect", Socket: socket, Addr: to})
		peer := c.sockets.do(op{Call: "peer", Socket: socket})
		return fmt.Sprintf("socket %d connects to %s: %v, %s", socket, to, out.Errno, peer.Addr) + c.answer(socket)
	}
	socket, to := c.pick()
	out := c.sockets.do(op{Call: "send", Socket: socket, Addr: to})
	return fmt.Sprintf("socket %d sends to %s: %v", socket, to, out.Errno) + c.answer(socket)
}

// answer returns what a socket receives, if that is there at once: servers are in the same pod.
func (c *caller) answer(socket int) string {
	out := c.sockets.do(op{Call: "receive", Socket: socket, Limit: 20 * time.Millisecond})
	return fmt.Sprintf(", gets %v, %s from %s", out.Errno, out.Text, out.Addr)
}

// strike makes a call that does not wait for anything.
func (c *caller) strike() {
	list := append(dialedServices(), netip.MustParseAddrPort("0.0.0.0:53"), netip.MustParseAddrPort("127.0.0.1:53"), vip4)
	socket, to := c.pick()
	switch c.IntN(6) {
	case 0:
		c.dials.do(order{Dial: list[c.IntN(len(list))], Dual: true})
	case 1:
		c.dials.do(order{Dial: to, Redial: list[c.IntN(5)], Dual: true, UDP: true})
	case 2:
		c.sockets.do(op{Call: "connect", Socket: socket, Addr: to})
	case 3:
		c.sockets.do(op{Call: "peer", Socket: socket})
	default:
		c.sockets.do(op{Call: "send", Socket: socket, Addr: to})
	}
}

func TestSocketNoninterference(t *testing.T) {
	n := newNode(t)
	addShared(n)
	honest, hostile := rig.NewNetns(t, "honest"), newCaller(t, n, rig.NewNetns(t, "hostile"), 2)
	servers := newCaller(t, n, honest, 0)
	servers.serve()
	hostile.serve()
	play := func(strikes int) (seen []string) {
		c := newCaller(t, n, honest, 1)
		c.hold()
		for range honestCalls {
			for range strikes {
				hostile.strike()
			}
			seen = append(seen, c.call())
		}
		return seen
	}
	want := play(0)
	for _, strikes := range []int{0, hostileEach} {
		for i, seen := range play(strikes) {
			if seen != want[i] {
				t.Fatalf("call %d, with %d of another pod before each:\nsees %s\nwant %s", i, strikes, seen, want[i])
			}
		}
	}
}
