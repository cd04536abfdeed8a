package netns

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

func TestDatagrams(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, proto: model.UDP, backends: back4[:1]})
	n.add(service{vip: vip6, proto: model.UDP, backends: []netip.AddrPort{back6}})
	p := newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	p.serve(back4[0], back6)
	for _, test := range []struct {
		name   string
		to     netip.AddrPort
		dual   bool
		server netip.AddrPort
		from   netip.AddrPort
	}{
		{"IPv4", vip4, false, back4[0], vip4},
		{"IPv6", vip6, false, back6, vip6},
		{"IPv4 with an IPv6 socket", vip4, true, back4[0], mapped(vip4)},
		{"no service", back4[0], false, back4[0], back4[0]},
		{"no service with an IPv6 socket", back4[0], true, back4[0], mapped(back4[0])},
	} {
		t.Run(test.name, func(t *testing.T) {
			p.t = t
			for range 3 {
				if server, from := p.ask(p.udp(test.to, test.dual), test.to); server != test.server.String() || from != test.from {
					t.Errorf("not connected: %s answers as %s, want %s as %s", server, from, test.server, test.from)
				}
			}
			socket := p.udp(test.to, test.dual)
			p.must(op{Call: "connect", Socket: socket, Addr: test.to})
			if peer := p.must(op{Call: "peer", Socket: socket}).Addr; peer != test.from {
				t.Errorf("connected: the peer is %s, want %s", peer, test.from)
			}
			if server, from := p.ask(socket, netip.AddrPort{}); server != test.server.String() || from != test.from {
				t.Errorf("connected: %s answers as %s, want %s as %s", server, from, test.server, test.from)
			}
		})
	}
}

// One socket talks to many services in turn: replies come from the service it sent to, and it keeps
// its backend for each.
func TestSocketWithManyServices(t *testing.T) {
	n := newNode(t)
	const services = 20
	p := newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	vips := make([]netip.AddrPort, services)
	for i := range vips {
		vips[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 66, 1, byte(i + 1)}), 53)
		// Every service has four backends of its own.
		var backends []netip.AddrPort
		for j := range 4 {
			backends = append(backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, byte(i + 1), byte(j + 1)}), 5353))
		}
		n.add(service{vip: vips[i], proto: model.UDP, backends: backends})
		p.serve(backends...)
	}
	for _, dual := range []bool{false, true} {
		socket := p.udp(vips[0], dual)
		want := func(vip netip.AddrPort) netip.AddrPort {
			if dual {
				return mapped(vip)
			}
			return vip
		}
		for round := range 3 {
			for _, vip := range vips { // all requests first, then all answers
				p.must(op{Call: "send", Socket: socket, Addr: vip})
			}
			for range vips { // in any order
				out := p.must(op{Call: "receive", Socket: socket})
				service := netip.MustParseAddrPort(out.Text).Addr().As4()[2]
				if out.Addr != want(vips[service-1]) {
					t.Fatalf("dual %v, round %d: %s answers as %s", dual, round, out.Text, out.Addr)
				}
			}
		}
	}
}

func TestSocketKeepsItsBackend(t *testing.T) {
	n := newNode(t)
	index := n.add(service{vip: vip4, proto: model.UDP, algorithm: bpf.MapsAlgorithmALGORITHM_ROUND_ROBIN, backends: back4})
	p := newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	p.serve(back4...)
	socket := p.udp(vip4, false)
	first, _ := p.ask(socket, vip4)
	for range 8 {
		if server, _ := p.ask(socket, vip4); server != first {
			t.Fatalf("the socket moved from %s to %s", first, server)
		}
	}
	if other, _ := p.ask(p.udp(vip4, false), vip4); other == first {
		t.Errorf("another socket got %s too, want the next backend in turn", other)
	}

	// Remove the backend: its row loses the scope, and the table the slot.
	tables := n.Tables()
	word := maps.Word(tables.Services[index].Words[maps.ScopeAll])
	for i := range uint32(word.Len()) {
		slot := &tables.Slots[word.Off()+i]
		row := &tables.Backends[maps.SlotBackend(*slot)]
		if maps.BackendAddrPort(*row).String() == first {
			other := maps.SlotBackend(tables.Slots[word.Off()+(i+1)%4])
			atomic.StoreUint64(&slot.Value, maps.MakeSlot(other, index, word.Tag()).Value)
			atomic.StoreUint32(&row.Owner, maps.MakeOwner(index, 0))
		}
	}
	second, from := p.ask(socket, vip4)
	if second == first || from != vip4 {
		t.Errorf("with the backend gone %s answers as %s", second, from)
	}
	if server, _ := p.ask(socket, vip4); server != second {
		t.Errorf("the socket moved on from %s to %s", second, server)
	}
}

// Replies from a backend that two services share cannot be told apart: they count as replies of the
// service that the socket last sent to.
func TestServicesThatShareABackend(t *testing.T) {
	n := newNode(t)
	other := netip.MustParseAddrPort("127.66.0.2:53")
	third := netip.MustParseAddrPort("127.66.0.3:53")
	n.add(service{vip: vip4, proto: model.UDP, backends: back4[:1]})
	n.add(service{vip: other, proto: model.UDP, backends: back4[:1]})
	n.add(service{vip: third, proto: model.UDP, backends: back4[1:2]})
	p := newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	p.serve(back4...)
	socket := p.udp(vip4, false)
	for round, to := range []netip.AddrPort{vip4, other, vip4, vip4, third, other, third, back4[0], vip4, back4[0], third, other} {
		if _, from := p.ask(socket, to); from != to {
			t.Errorf("round %d: sent to %s, the answer is from %s", round, to, from)
		}
	}
	// An answer that arrives after the socket has sent to another service.
	p.must(op{Call: "send", Socket: socket, Addr: vip4})
	p.must(op{Call: "send", Socket: socket, Addr: third})
	for range 2 { // in any order
		out := p.must(op{Call: "receive", Socket: socket})
		if want := map[string]netip.AddrPort{back4[0].String(): vip4, back4[1].String(): third}[out.Text]; out.Addr != want {
			t.Errorf("%s answers as %s, want %s", out.Text, out.Addr, want)
		}
	}
}

// A socket that sends to more services than the programs remember loses the oldest, and nothing
// else.
func TestSocketWithTooManyServices(t *testing.T) {
	n := newNode(t)
	p := newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	var vips []netip.AddrPort
	for i := range 40 {
		vips = append(vips, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 66, 1, byte(i + 1)}), 53))
		backend := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)}), 5353)
		n.add(service{vip: vips[i], proto: model.UDP, backends: []netip.AddrPort{backend}})
		p.serve(backend)
	}
	socket := p.udp(vips[0], false)
	for range 2 {
		for _, vip := range vips {
			if _, from := p.ask(socket, vip); from != vip {
				t.Fatalf("sent to %s, the answer is from %s", vip, from)
			}
		}
	}
	for _, vip := range vips[len(vips)-32:] {
		p.must(op{Call: "send", Socket: socket, Addr: vip})
	}
	for range 32 { // in any order
		out := p.must(op{Call: "receive", Socket: socket})
		service := netip.MustParseAddrPort(out.Text).Addr().As4()[3]
		if out.Addr != vips[service-1] {
			t.Fatalf("%s answers as %s", out.Text, out.Addr)
		}
	}
}

func TestDatagramsRefused(t *testing.T) {
	n := newNode(t)
	empty6 := netip.MustParseAddrPort("[fd00:96::3]:80")
	n.add(service{vip: vip4, proto: model.UDP})
	n.add(service{vip: empty6, proto: model.UDP})
	p := newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	for _, test := range []struct {
		to   netip.AddrPort
		dual bool
	}{{vip4, false}, {empty6, false}, {vip4, true}} {
		t.Run(fmt.Sprint(test.to, " ", test.dual), func(t *testing.T) {
			p.t = t
			socket := p.udp(test.to, test.dual)
			for _, call := range []string{"send", "connect"} {
				if out := p.do(op{Call: call, Socket: socket, Addr: test.to}); out.Errno != unix.ECONNREFUSED {
					t.Errorf("%s: %v, want a refusal", call, out.Errno)
				}
			}
		})
	}
}
