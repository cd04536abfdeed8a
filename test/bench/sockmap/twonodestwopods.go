package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/bench/node"
	"fairlead.io/fairlead/test/rig"
)

// twoNodesTwoPods is a node with two pods, the processes in them, and the programs that take them past TCP;
// and another node whose own stack forwards the pods' packets.
type twoNodesTwoPods struct {
	pods   []*node.Pod
	others []*node.Pod // pods of the other node
	bpffs  string
	dir    string                             // for Unix sockets
	all    map[sockmap.Endpoint]sockmap.Rules // rules that admit both pods
	*sockmap.Sockmap
	relay    *kernelRelay
	patience time.Duration
	rest     func() error // stops Run; nil: it is not running
	undo     []func() error
}

func (s *twoNodesTwoPods) later(undo func() error) { s.undo = append(s.undo, undo) }

// Close stops everything.
func (s *twoNodesTwoPods) Close() error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo())
	}
	s.undo = nil
	return errors.Join(errs...)
}

func newTwoNodesTwoPods(ctx context.Context, binaries string) (s *twoNodesTwoPods, err error) {
	s = &twoNodesTwoPods{all: map[sockmap.Endpoint]sockmap.Rules{}, patience: patience}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.pods, err = s.addNode(ctx, binaries); err != nil {
		return s, err
	}
	if s.others, err = s.addNode(ctx, binaries, "--host-routing=stack"); err != nil {
		return s, err
	}
	if s.dir, err = os.MkdirTemp("", "fairlead-bench-"); err != nil {
		return s, err
	}
	s.later(func() error { return os.RemoveAll(s.dir) })
	if err := s.open(); err != nil {
		return s, err
	}
	s.relay, err = s.newKernelRelay()
	return s, err
}

// addNode starts a node with two pods that may take part.
func (s *twoNodesTwoPods) addNode(ctx context.Context, binaries string, flags ...string) ([]*node.Pod, error) {
	n, err := node.New(binaries, flags...)
	if err != nil {
		return nil, err
	}
	s.later(n.Close)
	pods, err := n.AddPods(ctx, 2)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		// Closed connections do not linger in TIME-WAIT, so that any number can follow each other.
		if err := pod.SetSysctl("net/ipv4/tcp_max_tw_buckets", "0"); err != nil {
			return nil, err
		}
		cookie, err := pod.Netns.Cookie()
		if err != nil {
			return nil, err
		}
		s.all[sockmap.Endpoint{Netns: cookie}] = sockmap.Rules{From: 1, To: 1}
	}
	return pods, nil
}

// open attaches the programs.
func (s *twoNodesTwoPods) open() error {
	bpffs, unmount, err := rig.MountBPFFS()
	if err != nil {
		return err
	}
	s.later(unmount)
	s.bpffs = bpffs
	s.later(func() error { return s.Sockmap.Close() })
	s.later(s.pause)
	return s.attach()
}

// attach attaches the programs and runs the agent's part for all connections that the rules admit.
func (s *twoNodesTwoPods) attach() (err error) {
	limits := sockmap.DefaultLimits()
	limits.Blocking = true
	s.Sockmap, err = sockmap.Open(sockmap.Config{BPFFS: s.bpffs, Limits: limits, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if err := s.Switch(true); err != nil {
		return err
	}
	s.resume()
	return nil
}

// detach removes the programs. No socket may be in the map.
func (s *twoNodesTwoPods) detach() error {
	return errors.Join(s.pause(), s.Sockmap.Close(), os.RemoveAll(sockmap.Dir(s.bpffs)))
}

// resume starts admitting sockets.
func (s *twoNodesTwoPods) resume() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	s.rest = func() error {
		cancel()
		return <-ended
	}
}

// pause stops admitting sockets. Those in the map stay there.
func (s *twoNodesTwoPods) pause() error {
	if s.rest == nil {
		return nil
	}
	rest := s.rest
	s.rest = nil
	return rest()
}

// endpoints says where the two ends of a connection are.
type endpoints struct {
	name           string
	client, server *hand
	at             netip.AddrPort
	path           string // path of the server's Unix socket
}

// The places.
const (
	loopback = "loopback"
	pods     = "pods"
	stacked  = "pods by the node's stack" // as with many other pod networks
)

// places starts the processes: a client, a server in the same pod, and one in the other pod; and
// two in the pods of the other node.
func (s *twoNodesTwoPods) places() (map[string]*endpoints, error) {
	client, err := s.hire(s.pods[0].Netns, "client")
	if err != nil {
		return nil, err
	}
	far, err := s.hire(s.others[0].Netns, "client of "+stacked)
	if err != nil {
		return nil, err
	}
	found := map[string]*endpoints{}
	for name, where := range map[string]struct {
		client *hand
		pod    *node.Pod
		at     netip.Addr
	}{
		loopback: {client, s.pods[0], netip.AddrFrom4([4]byte{127, 0, 0, 1})}, pods: {client, s.pods[1], s.pods[1].Addr}, stacked: {far, s.others[1], s.others[1].Addr},
	} {
		server, err := s.hire(where.pod.Netns, "server of "+name)
		if err != nil {
			return nil, err
		}
		r, err := server.ask(order{Do: "listen", At: netip.AddrPortFrom(where.at, 0), CPU: anyCPU})
		if err != nil {
			return nil, err
		}
		p := &endpoints{name: name, client: where.client, server: server, at: r.At, path: filepath.Join(s.dir, strconv.Itoa(server.Pid()))}
		if _, err := server.ask(order{Do: "listen", Path: p.path, CPU: anyCPU}); err != nil {
			return nil, err
		}
		found[name] = p
	}
	return found, nil
}

// stop kills the processes, so that none waits for another.
func (p *endpoints) stop() {
	p.client.Kill()
	p.server.Kill()
}

// mode says which path a connection takes.
type mode string

// The modes.
const (
	on      mode = "past TCP"
	off     mode = "by TCP"
	held    mode = "by TCP, in the map" // the cost for connections in the map whose messages may not bypass TCP
	none    mode = "no program"         // no program runs at all
	nearby  mode = "Unix socket"        // the cost of calls and wake-ups alone
	minimum mode = "bare minimum"       // past TCP by a program that does nothing else
)

// cpus are the CPUs of the client and of the server.
type cpus struct {
	name           string
	client, server int
}

// talk is a connection of a place.
type talk struct {
	*endpoints
	s    *twoNodesTwoPods
	mode mode
	cpus cpus
	way  string
	at   netip.AddrPort // address of the client
}

// connect opens a connection in a mode.
func (s *twoNodesTwoPods) connect(p *endpoints, m mode, c cpus, way string) (*talk, error) {
	if err := s.SetRules(s.rulesOf(m)); err != nil {
		return nil, err
	}
	t := &talk{endpoints: p, s: s, mode: m, cpus: c, way: way}
	dial, accept := order{Do: "dial", At: p.at}, order{Do: "accept"}
	if m == nearby {
		dial.Path, accept.Path = p.path, p.path
	}
	b, err := t.do(dial, accept)
	if t.at = b.client.At; err == nil && m == minimum {
		_, err = t.do(order{Do: "least", Dir: s.relay.dir}, order{Do: "least", Dir: s.relay.dir})
	}
	return t, err
}

// rulesOf returns the rules that admit the connections of a mode.
func (s *twoNodesTwoPods) rulesOf(m mode) map[sockmap.Endpoint]sockmap.Rules {
	if m == on || m == held {
		return s.all
	}
	return nil
}

// do gives both ends an order.
func (t *talk) do(do, serve order) (both, error) {
	do.CPU, serve.CPU, do.Way, serve.Way = t.cpus.client, t.cpus.server, t.way, t.way
	return together(t.client, t.server, do, serve)
}

func (t *talk) ask(count, size int) (both, error) {
	return t.do(order{Do: "ask", Count: count, Size: size}, order{Do: "answer", Count: count, Size: size})
}

func (t *talk) pour(count, size int) (both, error) {
	return t.do(order{Do: "pour", Count: count, Size: size}, order{Do: "sink", Count: count, Size: size})
}

func (t *talk) mingle(count, size int) (both, error) {
	both := order{Do: "mingle", Count: count, Size: size}
	return t.do(both, both)
}

func (t *talk) fetch(count, size int) (both, error) {
	return t.do(order{Do: "fetch", Count: count, Size: size}, order{Do: "supply", Count: count, Size: size})
}

func (t *talk) close() error {
	_, err := t.do(order{Do: "close"}, order{Do: "close"})
	if t.mode == held {
		err = errors.Join(err, t.s.Switch(true))
		t.s.resume()
	}
	return err
}

// pair returns what the programs know of the connection.
func (t *talk) pair() (found sockmap.Pair, ok bool, err error) {
	list, err := t.s.Pairs()
	for _, p := range list {
		if p.Client == t.at {
			return p, true, err
		}
	}
	return found, false, err
}

// warm is the number of requests before anything is measured: enough for the programs to see a
// conversation, and to have read since.
const warm = 48

// converse warms up both ends, and brings the connection into the state of its mode.
func (t *talk) converse(size int) error {
	if _, err := t.ask(warm, size); err != nil {
		return err
	}
	if t.mode != on && t.mode != held {
		_, err := t.ask(warm, size)
		return err
	}
	if err := t.until("accelerated", func(p sockmap.Pair) bool { return p.State == "accelerated" }); err != nil {
		return err
	}
	if t.mode == held {
		// While the agent's part is paused, the sockets are not taken out of the map.
		if err := errors.Join(t.s.pause(), t.s.Switch(false)); err != nil {
			return err
		}
	}
	_, err := t.ask(warm, size)
	return err
}

// patience bounds the wait for the agent's part, which takes milliseconds.
const patience = 5 * time.Second

func (t *talk) until(what string, f func(sockmap.Pair) bool) error {
	for end := time.Now().Add(t.s.patience); ; time.Sleep(500 * time.Microsecond) {
		p, ok, err := t.pair()
		if err != nil {
			return err
		}
		if ok && f(p) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the connection did not become %s, so there is nothing to measure: %+v (known: %v)", what, p, ok)
		}
	}
}
