package bpf

import (
	"bytes"
	"github.com/cilium/ebpf"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// quoted returns what an error quotes of a packet: its first bytes after the link header.
func quoted(p packet, l4 int) []byte { return p.bytes()[14 : p.headers()-p.l4Header()+l4] }

func (p packet) l4Header() int {
	switch p.proto {
	case tcp:
		return 20
	case sctp:
		return 32 // with a chunk
	}
	return 8
}

// errorCase is an error about a packet that left this node, and the packet as it came in.
type errorCase struct {
	from, to  string // of the error as it comes in
	left      packet
	came      packet
	wantFrom  string
	wantTo    string
	leaving   bool
	untouched bool // it passes unchanged
}

// errors tries every kind of error, quoting as little and as much as possible.
func (w *bareNode) errors(t *testing.T, name string, f family, c errorCase) {
	t.Helper()
	program := w.in
	if c.leaving {
		program = w.out
	}
	if program == "" {
		return
	}
	k := f.kinds()
	for _, kind := range []struct {
		kind, code byte
		rest       uint32
	}{{k.unreachable, k.port, 0}, {k.unreachable, 1, 0}, {k.tooBig, 4, 1400}, {k.expired, 0, 0}, {k.parameter, 0, 20 << 24}} {
		for _, l4 := range []int{8, 12, 18, 20, 23} {
			if l4 > c.left.l4Header()+5 {
				continue
			}
			in := message{from: c.from, to: c.to, kind: kind.kind, code: kind.code, rest: kind.rest, body: quoted(c.left, l4)}
			want := in
			if !c.untouched {
				want.from, want.to, want.body = c.wantFrom, c.wantTo, quoted(c.came, l4)
			}
			verdict, out := w.run(t, program, in.bytes())
			if verdict != "pass" {
				t.Errorf("%s: kind %d with %d bytes: %s; counted: %v", name, kind.kind, l4, verdict, w.reasons(t))
			}
			if diff := cmp.Diff(want.bytes(), out); diff != "" {
				t.Errorf("%s: kind %d with %d bytes (-want +have):\n%s", name, kind.kind, l4, diff)
			}
		}
	}
}

// dump returns the rows of flows, to see whether something has changed them.
func (w *bareNode) dump(t *testing.T) map[bpf.MapsFlow]bpf.MapsCtEntry {
	t.Helper()
	rows := map[bpf.MapsFlow]bpf.MapsCtEntry{}
	var key bpf.MapsFlow
	var row bpf.MapsCtEntry
	for _, m := range []*ebpf.Map{w.maps.Ct, w.maps.CtPending} {
		list := m.Iterate()
		for list.Next(&key, &row) {
			rows[key] = row
		}
		if err := list.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// Errors about either direction of a flow to another node reach the sender, quoting the packet as
// it was sent. They leave no trace.
func TestErrorsOfRemoteFlows(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		for _, proto := range []byte{tcp, udp, sctp} {
			w.sumUp(t, proto != sctp)
			w.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":8080", false)
			client, node, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
			came := packet{from: client, to: node, proto: proto, flags: syn, seq: 77}
			_, out := w.run(t, w.in, came.bytes())
			snat := f.snat + ":" + portOf(out, f)
			left := packet{from: snat, to: pod, proto: proto, flags: syn, seq: 77}
			before := w.dump(t)
			router := "203.0.113.200"
			if f.any == "[::]" {
				router = "2001:db8:99::1"
			}
			there := errorCase{from: router, to: host(f.snat), left: left, came: came, wantFrom: host(f.node), wantTo: host(f.client)}
			w.errors(t, "from a router beyond", f, there)
			there.from = host(f.pod)
			w.errors(t, "from the backend", f, there)
			answer, sent := packet{from: node, to: client, proto: proto}, packet{from: pod, to: snat, proto: proto}
			w.errors(t, "from the client's side", f, errorCase{from: router, to: host(f.node), left: answer, came: sent,
				wantFrom: host(f.snat), wantTo: host(f.pod)})
			forged := there
			forged.to, forged.untouched = host(f.node), true
			w.errors(t, "to somebody else", f, forged)
			forged = there
			forged.left.to, forged.untouched = f.pod+":8081", true
			w.errors(t, "about nothing", f, forged)
			if proto == udp {
				there.left.noSum, there.came.noSum = true, true
				w.errors(t, "without a sum", f, there)
			} else if there.left.options, there.came.options = 2, 2; f.any == "[::]" {
				there.left.extension, there.came.extension = []byte{0, 0, 1, 4, 0, 0, 0, 0}, []byte{0, 0, 1, 4, 0, 0, 0, 0}
			}
			w.errors(t, "with more headers", f, there)
			if diff := cmp.Diff(before, w.dump(t)); diff != "" {
				t.Errorf("errors have changed flows (-before +after):\n%s", diff)
			}
		}
	})
}

// A backend on this node keeps the client's address; errors from it or from the stack leave with
// the service's address.
func TestErrorsOfLocalFlows(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.sumUp(t, true)
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		came := packet{from: client, to: node, proto: udp}
		w.step(t, step{name: "request", in: came, want: packet{from: client, to: pod, proto: udp}})
		before := w.dump(t)
		c := errorCase{from: host(f.pod), to: host(f.client), left: packet{from: client, to: pod, proto: udp}, came: came,
			wantFrom: host(f.node), wantTo: host(f.client), leaving: true}
		w.errors(t, "from the pod", f, c)
		c.from = host(f.snat)
		w.errors(t, "from the stack", f, c)
		router := host(f.vip)
		answer, sent := packet{from: node, to: client, proto: udp}, packet{from: pod, to: client, proto: udp}
		w.errors(t, "from the client's side", f, errorCase{from: router, to: host(f.node), left: answer, came: sent,
			wantFrom: router, wantTo: host(f.pod)})
		w.errors(t, "about a request that leaves", f, errorCase{from: router, to: host(f.node), left: answer, leaving: true, untouched: true})
		if diff := cmp.Diff(before, w.dump(t)); diff != "" {
			t.Errorf("errors have changed flows (-before +after):\n%s", diff)
		}
	})
}

// ICMP that is not an error about a packet, or is truncated before the ports, is left to the stack.
func TestOtherICMP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		came := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}
		_, out := w.run(t, w.in, came.bytes())
		left := packet{from: f.snat + ":" + portOf(out, f), to: f.pod + ":8080", proto: tcp, flags: syn}
		k := f.kinds()
		whole := message{from: host(f.pod), to: host(f.snat), kind: k.unreachable, body: quoted(left, 8)}
		for name, m := range map[string]message{
			"redirect": {from: whole.from, to: whole.to, kind: k.redirect, body: whole.body},
			"echo":     {from: whole.from, to: whole.to, kind: k.echo, body: whole.body},
			"reply":    {from: whole.from, to: whole.to, kind: k.reply, body: whole.body},
			"fragment": {from: whole.from, to: whole.to, kind: k.unreachable, body: whole.body, fragment: 0x2000, id: 5},
			"no quote": {from: whole.from, to: whole.to, kind: k.unreachable},
		} {
			if verdict, out := w.run(t, w.in, m.bytes()); verdict != "pass" || !bytes.Equal(out, m.bytes()) {
				t.Errorf("%s: %s, %x", name, verdict, out)
			}
		}
		for n := range whole.body {
			m := whole
			m.body = whole.body[:n]
			if verdict, out := w.run(t, w.in, m.bytes()); verdict != "pass" || !bytes.Equal(out, m.bytes()) {
				t.Errorf("a quote of %d bytes: %s, %x", n, verdict, out)
			}
		}
		frame := whole.bytes()
		for n := w.shortest(f); n < len(frame); n++ {
			if verdict, out := w.run(t, w.in, frame[:n]); verdict != "pass" || !bytes.Equal(out, frame[:n]) {
				t.Errorf("cut to %d bytes: %s, %x", n, verdict, out)
			}
		}
	})
}
