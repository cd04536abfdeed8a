package bpf

import (
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	ack = 0x10
)

// step is a packet, and what must happen to it.
type step struct {
	name    string
	in      packet
	want    packet // without a "from": the same as in
	leaving bool   // handled by the program on the way out, which only tc has
	drop    string // the reason
}

func (w *bareNode) step(t *testing.T, s step) {
	t.Helper()
	program := w.in
	if s.leaving {
		program = w.out
	}
	if program == "" {
		return
	}
	verdict, want := "pass", s.want
	var before uint64
	if s.drop != "" {
		verdict, before = "drop", w.counted(t, s.drop)
	}
	if want.from == "" {
		want = s.in
	}
	have, out := w.run(t, program, s.in.bytes())
	if have != verdict {
		t.Fatalf("%s: %s, want %s; counted: %v", s.name, have, verdict, w.reasons(t))
	}
	if s.drop != "" && w.counted(t, s.drop) != before+1 {
		t.Errorf("%s: not counted as %s", s.name, s.drop)
	}
	if diff := cmp.Diff(want.bytes(), out); diff != "" {
		t.Errorf("%s (-want +have):\n%s", s.name, diff)
	}
}

// rows returns how many flows each map has.
func (w *bareNode) rows(t *testing.T) (open, half int) {
	t.Helper()
	var key bpf.MapsFlow
	var row bpf.MapsCtEntry
	for m, n := range map[*ebpf.Map]*int{w.maps.Ct: &open, w.maps.CtPending: &half} {
		rows := m.Iterate()
		for rows.Next(&key, &row) {
			*n++
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return open, half
}

// family has the addresses of a story in one family.
type family struct{ client, node, any, snat, pod, vip string }

func families() map[string]family {
	return map[string]family{
		"v4": {"198.51.100.7", "192.0.2.1", "0.0.0.0", "10.1.0.1", "10.244.1.5", "203.0.113.9"},
		"v6": {"[2001:db8:1::7]", "[2001:db8::1]", "[::]", "[fd01::1]", "[fd02::5]", "[2001:db8:2::9]"},
	}
}

func each(t *testing.T, story func(t *testing.T, w *bareNode, f family)) {
	t.Helper()
	eachWith(t, standardConfig(), story)
}

func eachWith(t *testing.T, config bpf.MapsPacketConfig, story func(t *testing.T, w *bareNode, f family)) {
	t.Helper()
	eachOn(t, hooks(), config, story)
}

func eachOn(t *testing.T, at []hook, config bpf.MapsPacketConfig, story func(t *testing.T, w *bareNode, f family)) {
	t.Helper()
	rig.Root(t)
	for _, h := range at {
		for name, f := range families() {
			t.Run(h.name+" "+name, func(t *testing.T) {
				t.Parallel()
				story(t, newBareNodeOf(t, h, config), f)
			})
		}
	}
}

// A TCP flow to a backend on another node is established by the client's acknowledgment, and by
// nothing else.
func TestRemoteTCP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		w.sumUp(t, true)
		client, node, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
		_, out := w.run(t, w.in, packet{from: client, to: node, proto: tcp, flags: syn}.bytes())
		snat := f.snat + ":" + portOf(out, f)
		send := func(name string, flags byte, n uint32) {
			w.step(t, step{name: name, in: packet{from: client, to: node, proto: tcp, flags: flags, ack: n},
				want: packet{from: snat, to: pod, proto: tcp, flags: flags, ack: n}})
		}
		expect := func(open, half int) {
			t.Helper()
			if o, h := w.rows(t); o != open || h != half {
				t.Fatalf("%d flows are open and %d half, want %d and %d", o, h, open, half)
			}
		}
		send("the same again", syn, 0)
		send("a guess", ack, 1001)
		expect(0, 2)
		w.step(t, step{name: "answer", in: packet{from: pod, to: snat, proto: tcp, flags: syn | ack, seq: 1000},
			want: packet{from: node, to: client, proto: tcp, flags: syn | ack, seq: 1000}})
		send("another guess", ack, 900)
		expect(0, 2)
		send("what was answered", ack, 1001)
		expect(2, 0)
		send("on it goes", ack, 70000)
		w.step(t, step{name: "both ways", in: packet{from: pod, to: snat, proto: tcp, flags: ack, seq: 2000},
			want: packet{from: node, to: client, proto: tcp, flags: ack, seq: 2000}})
	})
}

// A UDP flow to a backend on this node keeps the client's address, and answers leave with the
// frontend's address.
func TestLocalUDP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		for _, s := range []step{
			{name: "request", in: packet{from: client, to: node, proto: udp}, want: packet{from: client, to: pod, proto: udp}},
			{name: "no sum", in: packet{from: client, to: node, proto: udp, noSum: true},
				want: packet{from: client, to: pod, proto: udp, noSum: true}},
			{name: "tags, which their own device takes off", in: packet{from: client, to: node, proto: udp, tags: 2}},
			{name: "answer", leaving: true, in: packet{from: pod, to: client, proto: udp},
				want: packet{from: node, to: client, proto: udp}},
			{name: "request again", in: packet{from: client, to: node, proto: udp}, want: packet{from: client, to: pod, proto: udp}},
			{name: "answer again", leaving: true, in: packet{from: pod, to: client, proto: udp},
				want: packet{from: node, to: client, proto: udp}},
		} {
			w.step(t, s)
		}
		if open, _ := w.rows(t); w.out != "" && open != 2 {
			t.Errorf("%d rows are open, want 2", open)
		}
	})
}

// Packets that are not for a service, or truncated, pass unchanged; packets that cannot be handled
// are dropped and counted.
func TestVerdicts(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		client := f.client + ":4000"
		tcpTo := func(to string, flags byte) packet { return packet{from: client, to: to, proto: tcp, flags: flags} }
		for _, s := range []step{
			{name: "no service", in: tcpTo(f.node+":22", syn)},
			{name: "not this node", in: tcpTo(f.pod+":30080", syn)},
			{name: "another protocol", in: packet{from: client, to: f.node + ":30080", proto: udp}},
			{name: "three tags", in: packet{from: client, to: f.node + ":30080", proto: tcp, flags: syn, tags: 3}},
			{name: "nobody's reset", in: tcpTo(f.node+":30080", rst)},
		} {
			w.step(t, s)
		}
		whole := packet{from: client, to: f.node + ":30080", proto: tcp, flags: syn}
		w.step(t, step{name: "later fragment", in: packet{from: client, to: f.node + ":30080", proto: tcp, fragment: 3}})
		if f.any == "0.0.0.0" {
			whole.options = 3
		} else {
			whole.extension = []byte{0, 0, 1, 4, 0, 0, 0, 0}
		}
		frame := whole.bytes()
		for n := w.shortest(f); n < whole.headers(); n++ {
			if verdict, out := w.run(t, w.in, frame[:n]); verdict != "pass" || cmp.Diff(frame[:n], out) != "" {
				t.Errorf("cut to %d bytes: %s, %x", n, verdict, out)
			}
		}
		_, out := w.run(t, w.in, frame)
		whole.from, whole.to = f.snat+":"+portOfAt(out, whole.headers()-20), f.pod+":8080"
		if diff := cmp.Diff(whole.bytes(), out); diff != "" {
			t.Errorf("with more headers (-want +have):\n%s", diff)
		}
	})
}

// Four ports allow four established flows to one backend, each with its own port.
func TestPortsRunOut(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		used := map[string]bool{}
		before := w.counted(t, "no-port")
		for i := range 40 {
			from := netip.AddrPortFrom(netip.MustParseAddrPort(f.client+":1").Addr(), uint16(4000+i)).String()
			b, ok := w.borrow(t, f, from, tcp)
			if !ok {
				continue
			}
			if used[b.snat] {
				t.Errorf("port %s has two flows", b.snat)
			}
			used[b.snat] = true
			w.establish(t, f, b)
		}
		if len(used) != 4 || w.counted(t, "no-port") != before+36 {
			t.Errorf("%d ports are used, %d flows found none", len(used), w.counted(t, "no-port")-before)
		}
	})
}
