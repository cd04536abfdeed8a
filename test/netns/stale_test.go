package netns

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// soon is how long a client may wait for a backend that is gone.
const soon = time.Second

// waiter is a socket that waits for an answer that cannot come.
type waiter struct {
	*program
	socket int
	server netip.AddrPort
	finish func() outcome
}

// newWaiter connects a UDP socket to a service, gets one answer, and waits for another until it is
// woken; the test judges how long that took.
func newWaiter(t *testing.T, k *nodeWithSweeper, ns *rig.Netns, s endpointsOf, dual bool) *waiter {
	t.Helper()
	w := newAnswered(t, k, ns, s, dual)
	w.wait(time.Minute)
	return w
}

// newBystander returns a waiter that must not be woken; it gives up after a while.
func newBystander(t *testing.T, k *nodeWithSweeper, ns *rig.Netns, s endpointsOf, dual bool) *waiter {
	t.Helper()
	w := newAnswered(t, k, ns, s, dual)
	w.wait(2 * time.Second)
	return w
}

func newAnswered(t *testing.T, k *nodeWithSweeper, ns *rig.Netns, s endpointsOf, dual bool) *waiter {
	t.Helper()
	w := &waiter{program: newProgram(t, k.cgroup, ns)}
	w.serve(s.backends...)
	w.socket = w.udp(s.vip, dual)
	w.must(op{Call: "connect", Socket: w.socket, Addr: s.vip})
	server, _ := w.ask(w.socket, netip.AddrPort{})
	w.server = netip.MustParseAddrPort(server)
	return w
}

func (w *waiter) wait(limit time.Duration) {
	w.t.Helper()
	w.finish = w.begin(op{Call: "receive", Socket: w.socket, Limit: limit})
}

// woken checks that the waiter was aborted soon.
func (w *waiter) woken(since rig.Stopwatch) {
	w.t.Helper()
	if out := w.finish(); out.Errno != unix.ECONNABORTED {
		w.t.Errorf("the reader ended with %v", out.Errno)
	}
	if took := since.Took(); took > soon {
		w.t.Errorf("the reader waited for %v", took)
	}
}

// left checks that a bystander waited in vain.
func (w *waiter) left() {
	w.t.Helper()
	if out := w.finish(); out.Errno != unix.EAGAIN {
		w.t.Errorf("the reader ended with %v", out.Errno)
	}
}

// A reader that waits for a backend that is gone is told so, and gets another backend when it
// connects again, even if there was none for a while.
func TestStaleReaders(t *testing.T) {
	back6s := []netip.AddrPort{back6, netip.MustParseAddrPort("[::1]:8081")}
	for _, test := range []struct {
		name     string
		vip      netip.AddrPort
		backends []netip.AddrPort
		dual     bool
	}{
		{"IPv4", vip4, back4[:2], false},
		{"IPv6", vip6, back6s[:1], false},
		{"IPv4 with an IPv6 socket", vip4, back4[:2], true},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newNodeWithSweeper(t, model.UDP)
			full := endpointsOf{name: "dns", vip: test.vip, proto: model.UDP, backends: test.backends}
			k.deliver(full)
			k.waitSlots(full, len(full.backends))
			w := newWaiter(t, k, k.host, full, test.dual)
			gone := rig.NewStopwatch(t)
			k.deliver(full.without(w.server))
			w.woken(gone)
			k.deliver(full.without(test.backends...))
			k.waitSlots(full, 0)
			if out := w.do(op{Call: "connect", Socket: w.socket, Addr: test.vip}); out.Errno != unix.ECONNREFUSED {
				t.Errorf("connect with no backend: %v", out.Errno)
			}
			k.deliver(full)
			k.waitSlots(full, len(full.backends))
			w.must(op{Call: "connect", Socket: w.socket, Addr: test.vip})
			if _, from := w.ask(w.socket, netip.AddrPort{}); from.Port() != test.vip.Port() {
				t.Errorf("the answer is from %s", from)
			}
		})
	}
}

// What ends a datagram socket's connection, and what does not.
func TestStaleIsGoneForGood(t *testing.T) {
	other := endpointsOf{name: "other", vip: netip.MustParseAddrPort("127.66.0.9:53"), proto: model.UDP, backends: back4[:2]}
	full := endpointsOf{name: "dns", vip: vip4, proto: model.UDP, backends: back4[:2]}
	for _, test := range []struct {
		name  string
		then  func(server netip.AddrPort) []endpointsOf
		woken bool
	}{
		{"the endpoint is deleted", func(server netip.AddrPort) []endpointsOf { return []endpointsOf{full.without(server)} }, true},
		{"another Service has it still", func(server netip.AddrPort) []endpointsOf { return []endpointsOf{full.without(server), other} }, true},
		{"the endpoint does not serve any more", func(server netip.AddrPort) []endpointsOf { return []endpointsOf{full.as(0, server)} }, true},
		{"it ends and does not serve", func(server netip.AddrPort) []endpointsOf { return []endpointsOf{full.as(model.Terminating, server)} }, true},
		{"it drains", func(server netip.AddrPort) []endpointsOf {
			return []endpointsOf{full.as(model.Serving|model.Terminating, server)}
		}, false},
		{"it drains with all others", func(netip.AddrPort) []endpointsOf {
			return []endpointsOf{full.as(model.Serving|model.Terminating, full.backends...)}
		}, false},
		{"it is published although it is not ready", func(server netip.AddrPort) []endpointsOf {
			return []endpointsOf{full.as(model.Ready, server)}
		}, false},
		{"it has another port", func(netip.AddrPort) []endpointsOf { return []endpointsOf{full.at(9090)} }, true},
		{"the Service is deleted", func(netip.AddrPort) []endpointsOf { return nil }, true},
		{"the frontend passes to another Service", func(server netip.AddrPort) []endpointsOf {
			heir := full.without(server)
			heir.name = "heir"
			return []endpointsOf{heir}
		}, true},
		{"another endpoint is deleted", func(server netip.AddrPort) []endpointsOf {
			return []endpointsOf{full.without(full.backends[1-slices.Index(full.backends, server)])}
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			k := newNodeWithSweeper(t, model.UDP)
			k.deliver(full)
			k.waitSlots(full, 2)
			begin := newBystander
			if test.woken {
				begin = newWaiter
			}
			w := begin(t, k, k.host, full, false)
			gone := rig.NewStopwatch(t)
			k.deliver(test.then(w.server)...)
			if test.woken {
				w.woken(gone)
				return
			}
			w.left()
			if s := k.sweeper.Stats(); s.Scans < 2 || s.Aborted[model.UDP] != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A backend that is back before any socket was aborted counts as never gone.
func TestStaleForAMoment(t *testing.T) {
	k := newNodeWithSweeper(t, model.UDP)
	full := endpointsOf{name: "dns", vip: vip4, proto: model.UDP, backends: back4[:1]}
	k.deliver(full)
	k.waitSlots(full, 1)
	w := newBystander(t, k, k.host, full, false)
	k.deliver()
	k.waitGone(full)
	k.deliver(full)
	w.left()
}

// Only a holder of a sock_diag socket of a pod's namespace can abort the pod's sockets.
func TestStaleInAPod(t *testing.T) {
	k := newNodeWithSweeper(t, model.UDP)
	full := endpointsOf{name: "dns", vip: vip4, proto: model.UDP, backends: back4[:1]}
	k.deliver(full)
	k.waitSlots(full, 1)
	known, unknown := rig.NewNetns(t, "known pod"), rig.NewNetns(t, "unknown pod")
	k.watch("pod", known)
	inKnown, inUnknown := newWaiter(t, k, known, full, false), newBystander(t, k, unknown, full, false)
	gone := rig.NewStopwatch(t)
	k.deliver()
	inKnown.woken(gone)
	inUnknown.left()
}

// An agent that starts finds the backends that went away while no agent ran.
func TestStaleAfterRestart(t *testing.T) {
	k := newNodeWithSweeper(t, model.UDP)
	full := endpointsOf{name: "dns", vip: vip4, proto: model.UDP, backends: back4[:2]}
	other := endpointsOf{name: "other", vip: netip.MustParseAddrPort("127.66.0.9:53"), proto: model.UDP, backends: back4[2:3]}
	k.deliver(full, other)
	k.waitSlots(full, 2)
	k.waitSlots(other, 1)
	w, stays := newWaiter(t, k, k.host, full, false), newBystander(t, k, k.host, other, false)
	k.stop()
	k.start(model.NewStore("node"), model.UDP)
	back := rig.NewStopwatch(t)
	k.deliver(full.without(w.server), other)
	w.woken(back)
	stays.left()
}

// A client with a socket for each of many servers loses the one whose server is gone. None of
// 10,000 other sockets of every kind is harmed.
func TestStaleSparesOthers(t *testing.T) {
	k := newNodeWithSweeper(t, model.UDP, model.TCP)
	gone := endpointsOf{name: "gone", vip: vip4, proto: model.UDP, backends: back4[:1]}
	same := endpointsOf{name: "same", vip: netip.MustParseAddrPort("127.66.0.9:53"), proto: model.UDP, backends: back4[:1]}
	stream := endpointsOf{name: "stream", vip: netip.MustParseAddrPort("127.66.0.10:80"), proto: model.TCP, backends: back4[:1]}
	six := endpointsOf{name: "six", vip: vip6, proto: model.UDP, backends: []netip.AddrPort{back6}}
	all := []endpointsOf{gone, same, stream, six}
	k.deliver(all...)
	for _, s := range all {
		k.waitSlots(s, 1)
	}
	k.until(func() bool { return k.sweeper.Stats().Scans == 2 }, "the sweeper does not look at the start") // the sweeper rests after a look
	servers := &pod{t: t, process: rig.NewChild(t, k.cgroup, k.host, "pod")}
	servers.listen(back4[0])
	p := newProgram(t, k.cgroup, k.host)
	at := 100_000
	for _, crowd := range []op{
		{N: 3000, Addr: netip.MustParseAddrPort("127.0.0.50:53")}, // no service
		{N: 2000, Addr: back4[0]},                                 // the backend itself
		{N: 500, Addr: back4[0], Dual: true},                      // the same with IPv6 sockets
		{N: 1500, Addr: same.vip},                                 // through a service that still has it
		{N: 500, Addr: same.vip, Dual: true},                      //
		{N: 1000, Addr: six.vip},                                  //
		{N: 1000},                                                 // not connected
		{N: 500, Addr: stream.vip, TCP: true},                     //
	} {
		crowd.Call, crowd.Socket = "crowd", at
		at += crowd.N
		p.must(crowd)
	}
	// An unconnected socket that uses this very service.
	loose := p.udp(gone.vip, false)
	p.must(op{Call: "send", Socket: loose, Addr: gone.vip})
	w := newWaiter(t, k, k.host, gone, false)
	away := rig.NewStopwatch(t)
	k.deliver(gone.without(back4[0]), same, stream, six)
	w.woken(away)
	t.Logf("woken after %v", away.Took())
	if n := p.must(op{Call: "harmed"}).N; n != 0 {
		t.Errorf("%d of %d other sockets were harmed", n, at-100_000+1)
	}
	k.until(func() bool { return k.sweeper.Stats().Aborted[model.UDP] > 0 }, "the look that woke it did not end")
	s := k.sweeper.Stats()
	t.Logf("%d looks took %v together", s.Scans, s.Took)
	if s.Aborted[model.UDP] != 1 || s.Aborted[model.TCP] != 0 || s.LastError != "" {
		t.Errorf("%+v", s)
	}
}

// A TCP connection is reset only where the user wants that, and only when its endpoint is deleted.
func TestStaleStreams(t *testing.T) {
	full := endpointsOf{name: "web", vip: vip4, proto: model.TCP, backends: back4[:2]}
	for _, test := range []struct {
		name      string
		protocols []model.Protocol
		then      []endpointsOf
		woken     bool
	}{
		{"deleted", []model.Protocol{model.UDP, model.TCP}, []endpointsOf{full.without(back4[0])}, true},
		{"not asked for", []model.Protocol{model.UDP}, []endpointsOf{full.without(back4[0])}, false},
		{"does not serve", []model.Protocol{model.UDP, model.TCP}, []endpointsOf{full.as(model.Terminating, back4[0])}, false},
		{"another port", []model.Protocol{model.UDP, model.TCP}, []endpointsOf{full.at(9090)}, false},
		{"the Service is deleted", []model.Protocol{model.UDP, model.TCP}, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			k := newNodeWithSweeper(t, test.protocols...)
			k.deliver(full.without(back4[1]))
			k.waitSlots(full, 1)
			server, client := newProgram(t, k.cgroup, k.host), newProgram(t, k.cgroup, k.host)
			server.must(op{Call: "open", Socket: 1, Addr: back4[0], TCP: true})
			server.must(op{Call: "bind", Socket: 1, Addr: back4[0]})
			server.must(op{Call: "listen", Socket: 1})
			client.must(op{Call: "open", Socket: 1, Addr: vip4, TCP: true})
			client.must(op{Call: "connect", Socket: 1, Addr: vip4})
			k.deliver(full)
			k.waitSlots(full, 2)
			w, limit := &waiter{program: client, socket: 1}, 2*time.Second
			if test.woken {
				limit = time.Minute
			}
			w.wait(limit)
			gone := rig.NewStopwatch(t)
			k.deliver(test.then...)
			if test.woken {
				w.woken(gone)
			} else {
				w.left()
			}
		})
	}
}

// A service scales to zero and back: a client that reconnects when told to, and one that just keeps
// sending, both get an answer within a second.
func TestStaleScaleToZeroAndBack(t *testing.T) {
	k := newNodeWithSweeper(t, model.UDP)
	full := endpointsOf{name: "dns", vip: vip4, proto: model.UDP, backends: back4[:1]}
	moved := endpointsOf{name: "dns", vip: vip4, proto: model.UDP, backends: back4[1:2]}
	k.deliver(full)
	k.waitSlots(full, 1)
	loose := newProgram(t, k.cgroup, k.host)
	loose.serve(back4[:2]...)
	w := newWaiter(t, k, k.host, endpointsOf{vip: vip4}, false)
	socket := loose.udp(vip4, false)
	if server, _ := loose.ask(socket, vip4); server != back4[0].String() {
		t.Fatalf("%s answers", server)
	}
	away := rig.NewStopwatch(t)
	k.deliver(full.without(back4[0]))
	k.waitSlots(full, 0)
	w.woken(away)
	if out := loose.do(op{Call: "send", Socket: socket, Addr: vip4}); out.Errno != unix.ECONNREFUSED {
		t.Errorf("sendto with no backend: %v", out.Errno)
	}
	back := rig.NewStopwatch(t)
	k.deliver(moved)
	for answered := false; !answered; {
		if back.Took() > soon {
			t.Fatal("no answer in time")
		}
		answered = w.do(op{Call: "connect", Socket: w.socket, Addr: vip4}).Errno == 0
	}
	if server, _ := w.ask(w.socket, netip.AddrPort{}); server != back4[1].String() {
		t.Errorf("connected again: %s answers", server)
	}
	if server, from := loose.ask(socket, vip4); server != back4[1].String() || from != vip4 {
		t.Errorf("not connected: %s answers as %s", server, from)
	}
	if took := back.Took(); took > soon {
		t.Errorf("both have an answer after %v", took)
	}
}
