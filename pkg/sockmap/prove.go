package sockmap

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// Prove returns why connections cannot bypass TCP on this kernel, or nil if they can, and how they
// then differ from TCP on this kernel. It exercises everything the programs do with connections of
// its own, over maps of its own, in a network namespace that is gone when it returns. It needs
// privileges.
func Prove(limits Limits) (differences []string, err error) { return Config{Limits: limits}.prove() }

func (c Config) prove() (differences []string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine: it is in another namespace
		differences, err = c.proveHere()
	}()
	<-done
	return differences, err
}

// proof is one run of Prove.
type proof struct {
	*generation
	listening int
	at        unix.Sockaddr
	limits    Limits

	differences []string
}

func (c Config) proveHere() (differences []string, err error) {
	if err := c.Limits.check(); err != nil {
		return nil, err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("cannot try the kernel: create a network namespace: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot try the kernel: set up loopback: %w", err)
	}
	p := &proof{limits: c.Limits}
	if p.generation, err = c.loadProof(); err != nil {
		return nil, err
	}
	defer p.generation.close()
	cookie, err := netnsCookie()
	if err != nil {
		return nil, err
	}
	if err := p.maps[rulesMap].Put(bpf.SockmapShortKey{Netns: cookie}, bpf.SockmapShortRules{From: 1, To: 1}); err != nil {
		return nil, fmt.Errorf("set rules: %w", err)
	}
	for _, at := range loopbacks() {
		err := p.runAt(at)
		if _, six := at.(*unix.SockaddrInet6); six && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)) {
			continue // the node has that family disabled
		}
		if err != nil {
			return nil, err
		}
	}
	return p.differences, nil
}

func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the cookie of a network namespace: %w", err)
	}
	return cookie, nil
}

// runAt runs the trials with one address family.
func (p *proof) runAt(at unix.Sockaddr) (err error) {
	if p.listening, p.at, err = listen(at); err != nil {
		return err
	}
	defer unix.Close(p.listening)
	if err := p.setOn(true); err != nil { // the trials of the previous family end with it off
		return err
	}
	return p.run()
}

func (c Config) loadProof() (*generation, error) {
	spec, _, err := c.programs()
	if err != nil {
		return nil, err
	}
	g, err := load("", spec, nil)
	if err != nil {
		return nil, fmt.Errorf("the kernel rejects the programs: %w", err)
	}
	return g, nil
}

// run runs all trials.
func (p *proof) run() error {
	for _, trial := range []struct {
		name string
		do   func(*exercise) error
	}{
		{"a megabyte each way, over both paths", func(e *exercise) error { return e.alternate() }},
		{"a reader that does not read", p.hoard},
		{"shutting down one direction", func(e *exercise) error { return e.endPending() }},
		{"closing right after sending", func(e *exercise) error { return e.endAtOnce() }},
		{"closing with unread data", func(e *exercise) error { return e.endUnread() }},
		{"what differs from TCP", p.differ},
		{"leaving the map", p.leave},
	} {
		if err := p.try(trial.do); err != nil {
			return fmt.Errorf("%s: %w", trial.name, err)
		}
	}
	return nil
}

// try makes a connection bypass TCP, and does something with it.
func (p *proof) try(do func(*exercise) error) error {
	e, err := connect(p.listening, p.at)
	if err != nil {
		return err
	}
	defer e.close()
	if err := e.converse(int(p.limits.Turns)+2*toBeSeen, 100); err != nil {
		return err
	}
	if err := p.admit(); err != nil {
		return err
	}
	if err := e.converse(10, 100); err != nil {
		return err
	}
	list, err := p.pairs()
	if err != nil {
		return err
	}
	if len(list) != 1 || list[0].State != "accelerated" || list[0].Redirected[0] == 0 || list[0].Redirected[1] == 0 {
		return fmt.Errorf("the kernel lets nothing bypass TCP: %+v", list)
	}
	if err := do(&e); err != nil {
		return err
	}
	e.close()
	e.client, e.server = -1, -1
	return p.gone()
}

// gone waits until the connection's row and sockets are gone: the kernel destroys the second end a
// little after the first.
func (p *proof) gone() error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		list, err := p.pairs()
		if err != nil {
			return err
		}
		sockets, err := p.sockets()
		if err != nil {
			return err
		}
		if len(list)+sockets == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d rows and %d sockets are left after connections have ended", len(list), sockets)
		}
	}
}

// hoard checks that no more data than the budget waits past TCP, and nearly as much does. Less does
// where the kernel lacks memory for a moment, so that is tried again.
func (p *proof) hoard(e *exercise) error {
	for tries := 1; ; tries++ {
		waited, err := p.hoardOnce(e)
		if err != nil {
			return err
		}
		if err := e.converse(10, 100); err != nil {
			return err
		}
		switch budget := uint64(p.limits.Budget); {
		case waited > budget:
			return fmt.Errorf("%d bytes waited past TCP, at most %d may", waited, budget)
		case waited >= budget/4:
			return nil
		case tries == 3:
			return fmt.Errorf("%d bytes waited past TCP, nearly %d should", waited, budget)
		}
	}
}

func (p *proof) hoardOnce(e *exercise) (waited uint64, err error) {
	before, err := p.pairs()
	if err != nil {
		return 0, err
	}
	budget, run := int(p.limits.Budget), int(p.limits.Run)
	piece := min(max(2*budget/run, budget/32), budget/2) // so long that the budget is used up before the run
	if _, err := e.hoard(piece, math.MaxInt32/32); err != nil {
		return 0, err
	}
	after, err := p.pairs()
	if err != nil {
		return 0, err
	}
	return after[0].Redirected[0] - before[0].Redirected[0], nil
}

// leave takes both ends out of the map while one has unread data.
func (p *proof) leave(e *exercise) error {
	message := pattern(7, 5000)
	if _, err := unix.Write(e.client, message); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := p.setOn(false); err != nil {
		return err
	}
	for range 3 {
		if _, err := p.sweep(); err != nil {
			return err
		}
	}
	switch n, err := p.sockets(); {
	case err != nil:
		return err
	case n == 0:
		return errors.New("sockets left with unread data")
	}
	if err := expect(e.server, message); err != nil {
		return fmt.Errorf("read data that waited past TCP: %w", err)
	}
	if err := e.converse(3, 100); err != nil {
		return err
	}
	for range 3 {
		if _, err := p.sweep(); err != nil {
			return err
		}
	}
	switch n, err := p.sockets(); {
	case err != nil:
		return err
	case n != 0:
		return fmt.Errorf("%d sockets did not leave", n)
	}
	return e.converse(3, 100)
}
