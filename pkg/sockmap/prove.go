package sockmap

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// Prove returns why connections may not go past TCP on this kernel; nil if they may. It has two ends do all that programs do, in a network namespace that
// is gone when it returns, over maps of its own. That takes what a privileged process may do.
func Prove(limits Limits) error { return Config{Limits: limits}.prove() }

func (c Config) prove() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this: it is not where it was
		result <- c.proveHere()
	}()
	return <-result
}

// proof is what the kernel is tried with.
type proof struct {
	*generation
	listening int
	at        unix.Sockaddr
	limits    Limits
}

func (c Config) proveHere() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("whether the kernel is fit could not be tried: make a network namespace: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("whether the kernel is fit could not be tried: use loopback: %w", err)
	}
	p := &proof{limits: c.Limits}
	if p.generation, err = c.loadProof(); err != nil {
		return err
	}
	defer p.generation.close()
	cookie, err := netnsCookie()
	if err != nil {
		return err
	}
	if err := p.maps[rulesMap].Put(bpf.SockmapShortKey{Netns: cookie}, bpf.SockmapShortRules{From: 1, To: 1}); err != nil {
		return fmt.Errorf("set rules: %w", err)
	}
	for _, at := range loopbacks() {
		err := p.runAt(at)
		if _, six := at.(*unix.SockaddrInet6); six && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)) {
			continue // the node does without that family
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("ask for the number of a network namespace: %w", err)
	}
	return cookie, nil
}

// runAt makes the trials by one family.
func (p *proof) runAt(at unix.Sockaddr) (err error) {
	if p.listening, p.at, err = listen(at); err != nil {
		return err
	}
	defer unix.Close(p.listening)
	if err := p.setOn(true); err != nil { // the trials of the family before end with that off
		return err
	}
	return p.run()
}

func (c Config) loadProof() (*generation, error) {
	spec, _, err := c.programs()
	if err != nil {
		return nil, err
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("the kernel does not take the programs: %w", err)
	}
	defer loaded.Close()
	g, err := empty("", loaded)
	if err != nil {
		return nil, err
	}
	if err := g.attach(loaded); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// run lets connections live and end.
func (p *proof) run() error {
	for _, trial := range []struct {
		name string
		do   func(*exercise) error
	}{
		{"a megabyte each way, past TCP and by it", func(e *exercise) error { return e.alternate() }},
		{"a reader that does not read", p.hoard},
		{"the end of one direction", func(e *exercise) error { return e.endHalf() }},
		{"the end behind what was sent", func(e *exercise) error { return e.endAtOnce() }},
		{"the end of who has not read", func(e *exercise) error { return e.endUnread() }},
		{"leaving the map", p.leave},
	} {
		if err := p.try(trial.do); err != nil {
			return fmt.Errorf("%s: %w", trial.name, err)
		}
	}
	return nil
}

// try lets a connection come to go past TCP, and does something with it.
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
	if len(list) != 1 || list[0].State != "short" || list[0].Redirected[0] == 0 || list[0].Redirected[1] == 0 {
		return fmt.Errorf("the kernel lets nothing go past TCP: %+v", list)
	}
	if err := do(&e); err != nil {
		return err
	}
	e.close()
	e.client, e.server = -1, -1
	return p.gone()
}

// gone waits for the connection's row and sockets to be gone: who ends a connection last does so after the other.
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
			return fmt.Errorf("%d rows and %d sockets stay when connections have ended", len(list), sockets)
		}
	}
}

// hoard holds that no more waits past TCP than may.
func (p *proof) hoard(e *exercise) error {
	before, err := p.pairs()
	if err != nil {
		return err
	}
	if _, err := e.hoard(math.MaxInt32 / 32); err != nil {
		return err
	}
	after, err := p.pairs()
	if err != nil {
		return err
	}
	if waited := after[0].Redirected[0] - before[0].Redirected[0]; waited > 2*uint64(p.limits.Budget) {
		return fmt.Errorf("%d bytes waited past TCP where %d may", waited, p.limits.Budget)
	}
	return e.converse(10, 100)
}

// leave takes both ends out of the map, with something that one has not read.
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
	if n, err := p.sockets(); err != nil || n == 0 {
		return errors.Join(err, errors.New("sockets leave with what they have not read"))
	}
	if err := expect(e.server, message); err != nil {
		return fmt.Errorf("what waited past TCP: %w", err)
	}
	if err := e.converse(3, 100); err != nil {
		return err
	}
	for range 3 {
		if _, err := p.sweep(); err != nil {
			return err
		}
	}
	if n, err := p.sockets(); err != nil || n != 0 {
		return errors.Join(err, fmt.Errorf("%d sockets do not leave", n))
	}
	return e.converse(3, 100)
}
