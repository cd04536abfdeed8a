package sockmap

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

// Read reports that another version with other row layouts exists, and whether it is switched on,
// but not its rows.
func TestReadOfAnother(t *testing.T) {
	rig.MapIterators(t)
	bpffs := rig.BPFFS(t)
	dir := filepath.Join(Dir(bpffs), "another")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]*ebpf.MapSpec{
		pairsMap:   {Type: ebpf.Hash, KeySize: 40, ValueSize: 160, MaxEntries: 16},
		rulesMap:   {Type: ebpf.Hash, KeySize: 16, ValueSize: 144, MaxEntries: 16},
		controlMap: {Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 3},
	} {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if name == pairsMap {
			if err := m.Put(make([]byte, 40), make([]byte, 160)); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Pin(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if view, err := Read(bpffs); err != nil || !view.Pinned || len(view.Pairs) != 0 {
		t.Errorf("%+v, %v", view, err)
	}
}

// The next Open removes what is left of an interrupted removal.
func TestRemoveInterrupted(t *testing.T) {
	rig.MapIterators(t)
	bpffs := rig.BPFFS(t)
	cfg := Config{BPFFS: bpffs, Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// The removal stops at a pin that cannot be removed at the moment.
	if err := unix.Mount("/dev/null", s.now.pin(wakesMap), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.now.remove(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("the removal was not interrupted: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(Dir(bpffs), "*", wakesMap))
	if err != nil || len(left) != 1 {
		t.Fatalf("pins left by the removal: %v, %v", left, err)
	}
	if err := unix.Unmount(left[0], 0); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if removed, err := Remove(bpffs); err != nil || !removed {
		t.Errorf("removed %v, %v", removed, err)
	}
}

// Hold also reaches programs that are being loaded at the same time.
func TestHoldMeanwhile(t *testing.T) {
	rig.MapIterators(t)
	cfg := Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)}
	s, err := Open(cfg)
	for i := range 12 {
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		opened := make(chan error)
		cfg.Limits.Run++ // which makes it another version
		go func() {
			var err error
			s, err = Open(cfg)
			opened <- err
		}()
		// Hold or Release run while the kernel verifies the programs, or before or after that.
		time.Sleep(time.Duration(i) * 10 * time.Millisecond)
		do, want := Hold, uint32(1)
		if i%2 > 0 {
			do, want = Release, 0
		}
		if found, err := do(cfg.BPFFS); err != nil || !found {
			t.Errorf("found %v, %v", found, err)
		}
		if err = <-opened; err != nil {
			continue
		}
		if held, err := s.now.control(bpf.SockmapControlCONTROL_HELD); err != nil || held != want {
			t.Errorf("switched after %d0 ms of %v: held is %d, %v, want %d", i, time.Since(began), held, err, want)
		}
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Error(err)
	}
}

// Hold outlives the programs that it was told to: they are removed after an error, and others follow.
func TestHoldOutlives(t *testing.T) {
	rig.MapIterators(t)
	cfg := Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)}
	if found, err := Hold(cfg.BPFFS); found || err != nil {
		t.Errorf("where no agent has run, there is something to hold: %v, %v", found, err)
	}
	for _, do := range []func(string) (bool, error){Hold, Hold, Release} {
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Switch(true), s.Close()); err != nil {
			t.Fatal(err)
		}
		if found, err := do(cfg.BPFFS); !found || err != nil {
			t.Errorf("found %v, %v", found, err)
		}
		left, err := Retire(cfg.BPFFS, cfg.Log)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); len(left.older) > 0 && time.Now().Before(end); {
			if _, err := left.sweepOlder(); err != nil {
				t.Fatal(err)
			}
		}
		dirs, err := generations(Dir(cfg.BPFFS), false)
		if err = errors.Join(err, left.Close()); err != nil || len(dirs) > 0 {
			t.Errorf("left are %v, %v", dirs, err)
		}
	}
	for want, do := range map[bool]func(string) (bool, error){true: Hold, false: Release} {
		if _, err := do(cfg.BPFFS); err != nil {
			t.Fatal(err)
		}
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.State()
		view, failed := Read(cfg.BPFFS)
		if err := errors.Join(err, failed, s.Close()); err != nil || state.Held != want || view.Held != want {
			t.Errorf("held: %v, %v, want %v, %v", state.Held, view.Held, want, err)
		}
	}
	if _, err := Hold(cfg.BPFFS); err != nil {
		t.Fatal(err)
	}
	if removed, err := Remove(cfg.BPFFS); !removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	for _, dir := range []string{Dir(cfg.BPFFS), heldDir(cfg.BPFFS)} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left is %s: %v", dir, err)
		}
	}
}

// A Hold by a version that told only the programs holds for others too.
func TestHoldOfBefore(t *testing.T) {
	rig.MapIterators(t)
	cfg := Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.now.setControl(bpf.SockmapControlCONTROL_HELD, 1), s.Close()); err != nil {
		t.Fatal(err)
	}
	cfg.Limits.Run++ // which makes it another version
	if s, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	state, err := s.State()
	if err := errors.Join(err, s.Close()); err != nil || !state.Held {
		t.Errorf("%+v, %v", state, err)
	}
}

// Connections are found however many others wait for an end that is not here.
func TestCrowd(t *testing.T) {
	rig.MapIterators(t)
	const room, crowd = 64, 200
	s, err := Open(Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler), tamper: func(spec *ebpf.CollectionSpec) {
		spec.Maps["halves"].MaxEntries = room
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, atOther, err := listener()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	own, atOwn, err := listener()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own)
	cookie, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetRules(map[Endpoint]Rules{{Netns: cookie}: {From: 1}, {Netns: cookie, Port: portOf(atOwn)}: {To: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Switch(true); err != nil {
		t.Fatal(err)
	}
	talk := func(listening int, at unix.Sockaddr, times int) {
		t.Helper()
		e, err := connect(listening, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.close)
		if err := e.converse(times, 100); err != nil {
			t.Fatal(err)
		}
	}
	for range crowd {
		talk(other, atOther, 10)
	}
	talk(own, atOwn, 100)
	if list, err := s.Pairs(); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// A connection for which the map has no room waits until there is some. That is not a refusal of the
// kernel's, after a few of which it would use TCP for good.
func TestFull(t *testing.T) {
	rig.MapIterators(t)
	x := newExchange(t, func(spec *ebpf.CollectionSpec) {
		spec.Maps[socksMap].MaxEntries = 3 // an end of the second gets in, and has to leave
	})
	first := x.connect()
	x.converse(first, "the first bypasses TCP", bypasses)
	second := x.connect()
	defer second.close()
	x.converse(second, "the second finds no room, more often than a kernel may refuse", func(p *Pair, tallies Tallies) bool {
		if p.Exclusion != "" || bypasses(p, tallies) {
			t.Fatalf("the second: %+v", p)
		}
		return tallies.Full > 4
	})
	first.close()
	x.converse(second, "the second has the room of the first", bypasses)
}

// blind makes programs that the kernel cannot attach of those that see all reads.
func blind(spec *ebpf.CollectionSpec) {
	spec.Programs[bpf.SockmapProgSockmapSeen].AttachTo = "no_function_of_the_kernel"
	spec.Programs[bpf.SockmapProgSockmapSeenOfAll].AttachTo = "no_tracepoint_of_the_kernel"
}

// Where the kernel does not show how sockets in the map are read, those that are read by edge-triggered epoll use TCP
// for good, and "fairlead init" says so.
func TestBlind(t *testing.T) {
	rig.MapIterators(t)
	differences, err := Config{Limits: DefaultLimits(), tamper: blind}.prove()
	if err != nil || !slices.Contains(differences, differsInEdges) {
		t.Errorf("the differences are %q, %v", differences, err)
	}
	for _, edge := range []bool{true, false} {
		x := newExchange(t, blind)
		if !slices.Contains(x.Differences, differsInEdges) {
			t.Errorf("the differences are %q", x.Differences)
		}
		e := x.connect()
		defer e.close()
		if edge {
			epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(epoll)
			if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, e.server, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
				t.Fatal(err)
			}
		}
		x.converse(e, "the connection is decided on", func(p *Pair, tallies Tallies) bool {
			return edge && p.Exclusion == "edge" && tallies.Redirected.Count == 0 || !edge && bypasses(p, tallies)
		})
	}
}

// What the kernel could not attach is attached by the next agent, to the same maps.
func TestSeesLate(t *testing.T) {
	rig.MapIterators(t)
	cfg := Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler), tamper: blind}
	was := ""
	for _, tamper := range []func(*ebpf.CollectionSpec){blind, func(*ebpf.CollectionSpec) {}, blind} {
		first := was == ""
		cfg.tamper = tamper
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := s.now.control(bpf.SockmapControlCONTROL_SEEN)
		if err != nil || seen != map[bool]uint32{true: 0, false: 1}[first] || s.now.isBlind() != first || (len(s.Differences) > 0) != first {
			t.Errorf("first %v: the programs see all reads: %d, %v; %q", first, seen, err, s.Differences)
		}
		if !first && s.now.dir != was {
			t.Errorf("the programs are in %s, and were in %s", s.now.dir, was)
		}
		if was = s.now.dir; len(s.older) > 0 {
			t.Errorf("there are %d former versions", len(s.older))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A version of the programs that cannot be opened is switched off all the same, and the error says which it is.
func TestRetireBroken(t *testing.T) {
	rig.MapIterators(t)
	bpffs := rig.BPFFS(t)
	s, err := Open(Config{BPFFS: bpffs, Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	dir := s.now.dir
	if err := errors.Join(s.Switch(true), s.Close(), os.Remove(filepath.Join(dir, sweepIter))); err != nil {
		t.Fatal(err)
	}
	left, err := Retire(bpffs, slog.New(slog.DiscardHandler))
	if left != nil || err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("left %v, %v", left, err)
	}
	if view, err := Read(bpffs); err != nil || !view.Pinned || view.On {
		t.Errorf("connections may bypass TCP: %+v, %v", view, err)
	}
}

// exchange is a Sockmap that runs, and a listener whose connections may bypass TCP.
type exchange struct {
	*Sockmap
	t         *testing.T
	listening int
	at        unix.Sockaddr
}

func newExchange(t *testing.T, tamper func(*ebpf.CollectionSpec)) *exchange {
	t.Helper()
	s, err := Open(Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler), tamper: tamper})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Error(err)
		}
	})
	x := &exchange{Sockmap: s, t: t}
	if x.listening, x.at, err = listener(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(x.listening) })
	cookie, err := netnsCookie()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.SetRules(map[Endpoint]Rules{{Netns: cookie}: {From: 1}, {Netns: cookie, Port: portOf(x.at)}: {To: 1}}), s.Switch(true)); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *exchange) connect() exercise {
	x.t.Helper()
	e, err := connect(x.listening, x.at)
	if err != nil {
		x.t.Fatal(err)
	}
	return e
}

// converse makes the ends of a connection converse until it is as it should be.
func (x *exchange) converse(e exercise, what string, is func(*Pair, Tallies) bool) {
	x.t.Helper()
	local, err := unix.Getsockname(e.client)
	if err != nil {
		x.t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		if err := e.converse(toBeSeen, 100); err != nil {
			x.t.Fatal(err)
		}
		pair, err := x.find(addrPortOf(local))
		if err != nil {
			x.t.Fatal(err)
		}
		tallies, err := x.Tallies()
		if err != nil {
			x.t.Fatal(err)
		}
		if pair != nil && is(pair, tallies) {
			return
		}
		if time.Now().After(end) {
			x.t.Fatalf("%s: %+v, %+v", what, pair, tallies)
		}
	}
}

func bypasses(p *Pair, _ Tallies) bool { return p.State == "accelerated" && p.Redirected[0] > 0 }

// Sockets are counted right while others come and go.
func TestSockets(t *testing.T) {
	rig.MapIterators(t)
	const connections = 100
	s, err := Open(Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	listening, at, err := listener()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listening)
	socks, clients := s.now.maps[socksMap], map[uint64]uint64{}
	for i := range uint64(connections) {
		e, err := connect(listening, at)
		if err != nil {
			t.Fatal(err)
		}
		defer e.close()
		clients[i] = uint64(e.client)
		if err := socks.Put(i, clients[i]); err != nil {
			t.Fatal(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for i := uint64(0); ; i = (i + 1) % connections {
			err := errors.Join(socks.Delete(i), socks.Put(i, clients[i]))
			select {
			case <-stop:
				stopped <- err
				return
			default:
			}
			if err != nil {
				<-stop
				stopped <- err
				return
			}
		}
	}()
	for range 2000 {
		if n, err := s.Sockets(); err != nil || n < connections-1 || n > connections {
			t.Errorf("%d sockets, %v: there are %d, of which one at a time is out", n, err, connections)
			break
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
