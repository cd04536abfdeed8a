package bpf

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
)

// session is a TCP flow through a service's frontend to a backend on another node.
type session struct {
	w                 *bareNode
	client, vip, snat string
	pod               string
}

// dial sends the first packet of a flow, and fails unless the flow gets a port.
func (w *bareNode) dial(t *testing.T, f family, client, vip, pod string) *session {
	t.Helper()
	l := &session{w: w, client: client, vip: vip, pod: pod}
	verdict, out := w.run(t, w.in, packet{from: client, to: vip, proto: tcp, flags: syn}.bytes())
	if verdict != "pass" {
		t.Fatalf("%s to %s: %s; counted: %v", client, vip, verdict, w.reasons(t))
	}
	l.snat = f.snat + ":" + portOf(out, f)
	l.request(t, "the first packet", syn, 0)
	return l
}

// request fails unless a packet of the client reaches the backend from the flow's own port.
func (l *session) request(t *testing.T, name string, flags byte, ack uint32) {
	t.Helper()
	l.w.step(t, step{name: name, in: packet{from: l.client, to: l.vip, proto: tcp, flags: flags, ack: ack},
		want: packet{from: l.snat, to: l.pod, proto: tcp, flags: flags, ack: ack}})
}

// reply fails unless a packet of the backend reaches the client, from the address that it dialed.
func (l *session) reply(t *testing.T, name string, flags byte, seq uint32) {
	t.Helper()
	l.w.step(t, step{name: name, in: packet{from: l.pod, to: l.snat, proto: tcp, flags: flags, seq: seq},
		want: packet{from: l.vip, to: l.client, proto: tcp, flags: flags, seq: seq}})
}

// shake establishes the flow.
func (l *session) shake(t *testing.T) {
	t.Helper()
	l.reply(t, "answer", syn|ack, 1000)
	l.request(t, "acknowledgment", ack, 1001)
}

// forget deletes a row of a map, as the LRU does when it needs the room.
func (w *bareNode) forget(t *testing.T, m *ebpf.Map, from, to string, proto byte) {
	t.Helper()
	key := flowOf(from, to, proto)
	if err := m.Delete(&key); err != nil {
		t.Fatalf("forget %s to %s: %v", from, to, err)
	}
}

func (w *bareNode) expectRows(t *testing.T, open, half int) {
	t.Helper()
	if o, h := w.rows(t); o != open || h != half {
		t.Fatalf("%d rows are established and %d half open, want %d and %d", o, h, open, half)
	}
}

// A flow whose rows were evicted before it was established continues unchanged, unless another flow
// has got its port.
func TestPushedOut(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		l := w.dial(t, f, f.client+":4000", f.node+":30080", f.pod+":8080")
		l.reply(t, "answer", syn|ack, 1000)
		w.forget(t, w.maps.CtPending, l.pod, l.snat, tcp)
		l.request(t, "without the reply's row", ack, 1001)
		w.expectRows(t, 2, 0)
		l.reply(t, "back", ack, 1001)

		l = w.dial(t, f, f.client+":4001", f.node+":30080", f.pod+":8080")
		l.reply(t, "answer", syn|ack, 1000)
		w.forget(t, w.maps.CtPending, l.client, l.vip, tcp)
		l.request(t, "without the request's row", ack, 1001)
		w.forget(t, w.maps.CtPending, l.client, l.vip, tcp)
		w.forget(t, w.maps.CtPending, l.pod, l.snat, tcp)
		l.request(t, "without either", ack, 1001)
		l.reply(t, "answer again", syn|ack, 1000)
		l.request(t, "acknowledged again", ack, 1001)
		w.expectRows(t, 4, 0)
	})
}

// A port whose reply row was evicted may belong to another flow by the next packet. Neither flow
// ever gets packets of the other, and the one that lost the port gets another.
func TestPortTaken(t *testing.T) {
	for _, promoted := range []bool{false, true} {
		each(t, func(t *testing.T, w *bareNode, f family) {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
			first := w.dial(t, f, f.client+":4000", f.node+":30080", f.pod+":8080")
			first.reply(t, "answer", syn|ack, 1000)
			w.forget(t, w.maps.CtPending, first.pod, first.snat, tcp)
			var thief *session
			for port := 5000; thief == nil || thief.snat != first.snat; port++ {
				if port == 5200 {
					t.Fatal("nobody got the free port")
				}
				thief = w.dialOnce(t, f, addrPort(f.client, port), first.vip, first.pod, first.snat)
			}
			if promoted {
				thief.shake(t)
			}
			in := packet{from: first.client, to: first.vip, proto: tcp, flags: ack, ack: 1001}
			verdict, out := w.run(t, w.in, in.bytes())
			if verdict != "pass" || portOf(out, f) == portOfText(thief.snat) {
				t.Fatalf("the flow that lost its port: %s, from port %s; %s belongs to another flow", verdict, portOf(out, f), thief.snat)
			}
			again := w.dial(t, f, first.client, first.vip, first.pod)
			if again.snat == thief.snat {
				t.Fatalf("two flows have %s", again.snat)
			}
			again.shake(t)
			if !promoted {
				thief.shake(t)
			}
			thief.reply(t, "to the other", ack, 1001)
			again.reply(t, "to the one", ack, 1001)
		})
	}
}

// dialOnce is dial, but forgets the flow again unless it gets a certain port.
func (w *bareNode) dialOnce(t *testing.T, f family, client, vip, pod, port string) *session {
	t.Helper()
	verdict, out := w.run(t, w.in, packet{from: client, to: vip, proto: tcp, flags: syn}.bytes())
	if verdict != "pass" {
		t.Fatalf("%s to %s: %s; counted: %v", client, vip, verdict, w.reasons(t))
	}
	l := &session{w: w, client: client, vip: vip, pod: pod, snat: f.snat + ":" + portOf(out, f)}
	if l.snat != port {
		w.forget(t, w.maps.CtPending, l.client, l.vip, tcp)
		w.forget(t, w.maps.CtPending, l.pod, l.snat, tcp)
	}
	return l
}

// A reset ends a flow: at once if it is not established, and as soon as the client dials again if
// it is.
func TestResets(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		client, vip, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
		l := w.dial(t, f, client, vip, pod)
		l.reply(t, "refused", rst|ack, 0)
		w.expectRows(t, 0, 0)
		l = w.dial(t, f, client, vip, pod)
		l.request(t, "given up", rst, 0)
		w.expectRows(t, 0, 0)
		for _, end := range []struct {
			name string
			by   func(l *session)
			anew bool
		}{
			{"nobody", func(*session) {}, false},
			{"the client's reset", func(l *session) { l.request(t, "reset", rst, 0) }, true},
			{"the backend's reset", func(l *session) { l.reply(t, "reset", rst, 0) }, true},
			{"the client's end", func(l *session) { l.request(t, "end", fin|ack, 1001) }, true},
			{"the backend's end", func(l *session) { l.reply(t, "end", fin|ack, 1001) }, false},
			{"a reset that was not heeded", func(l *session) {
				l.request(t, "reset", rst, 0)
				l.request(t, "more", ack, 1001)
				l.reply(t, "reset", rst, 0)
				l.reply(t, "more", ack, 1001)
			}, false},
		} {
			l = w.dial(t, f, client, vip, pod)
			l.shake(t)
			w.expectRows(t, 2, 0)
			end.by(l)
			verdict, _ := w.run(t, w.in, packet{from: client, to: vip, proto: tcp, flags: syn}.bytes())
			open, half := w.rows(t)
			if verdict != "pass" || (open == 0) != end.anew || (half == 2) != end.anew {
				t.Errorf("a SYN after %s: %s, %d rows are established and %d half open", end.name, verdict, open, half)
			}
			w.empty(t)
		}
	})
}

// If a server's SYN-ACK comes for a flow that has ended, it answers another connection, which got
// the flow's port elsewhere. While the flow may still go on, the SYN-ACK may just be late.
func TestEndedPort(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		client, vip, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
		end := func(l *session) {
			l.request(t, "end", fin|ack, 1001)
			l.reply(t, "end", fin|ack, 1001)
		}
		for _, c := range []struct {
			name  string
			by    func(l *session)
			flags byte
			over  bool
		}{
			{"nobody", func(*session) {}, syn | ack, false},
			{"the client's end", func(l *session) { l.request(t, "end", fin|ack, 1001) }, syn | ack, false},
			{"the backend's end", func(l *session) { l.reply(t, "end", fin|ack, 1001) }, syn | ack, false},
			{"both ends", end, syn | ack, true},
			{"both ends, and no answer", end, ack, false},
			{"both ends, and a refusal", end, syn | ack | rst, false},
			{"the client's reset", func(l *session) { l.request(t, "reset", rst, 0) }, syn | ack, true},
			{"the backend's reset", func(l *session) { l.reply(t, "reset", rst, 0) }, syn | ack, true},
			{"nobody, and before the request has its row", func(*session) { w.forget(t, w.maps.Ct, client, vip, tcp) }, syn | ack, false},
		} {
			l := w.dial(t, f, client, vip, pod)
			l.shake(t)
			c.by(l)
			in := packet{from: l.pod, to: l.snat, proto: tcp, flags: c.flags, seq: 7, ack: 8}
			verdict, out := w.run(t, w.in, in.bytes())
			if open, _ := w.rows(t); verdict != "pass" || bytes.Equal(out, in.bytes()) != c.over || (open == 0) != c.over {
				t.Errorf("after %s: %s, changed %v, %d rows are left", c.name, verdict, !bytes.Equal(out, in.bytes()), open)
			}
			w.empty(t)
		}
	})
}

// empty forgets every flow.
func (w *bareNode) empty(t *testing.T) {
	t.Helper()
	for _, m := range []*ebpf.Map{w.maps.Ct, w.maps.CtPending} {
		var key [40]byte
		for err := m.NextKey(nil, &key); !errors.Is(err, ebpf.ErrKeyNotExist); err = m.NextKey(nil, &key) {
			if err == nil {
				err = m.Delete(&key)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A ClusterIP is only for clients inside the cluster, unless configured otherwise; packets routed
// to pods are left alone.
func TestClusterIP(t *testing.T) {
	allowed := standardConfig()
	allowed.ExternalClusterip = 1
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.vip+":80", tcp, maps.ClusterIP, f.pod+":8080", true)
		for _, flags := range []byte{syn, ack, rst} {
			w.step(t, step{name: "refused", in: packet{from: f.client + ":4000", to: f.vip + ":80", proto: tcp, flags: flags}, drop: "cluster-ip"})
		}
		w.step(t, step{name: "another port", in: packet{from: f.client + ":4000", to: f.vip + ":81", proto: tcp, flags: syn}})
		w.step(t, step{name: "the pod", in: packet{from: f.client + ":4000", to: f.pod + ":8080", proto: tcp, flags: syn}})
	})
	eachWith(t, allowed, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.vip+":80", tcp, maps.ClusterIP, f.pod+":8080", true)
		in := packet{from: f.client + ":4000", to: f.vip + ":80", proto: tcp, flags: syn}
		w.step(t, step{name: "allowed", in: in, want: packet{from: in.from, to: f.pod + ":8080", proto: tcp, flags: syn}})
	})
}
