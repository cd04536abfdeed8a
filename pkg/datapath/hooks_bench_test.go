package datapath

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

const (
	idleCalls  = 500
	idleRounds = 600
)

// runIdle prints what each hook adds to a call that has nothing to do with any service: the minimum
// of many rounds with the hook, less the minimum of as many without. Its arguments are the bpf
// filesystem and the cgroup.
func runIdle(args []string) error {
	runtime.LockOSThread()
	d, err := Open(Config{BPFFS: args[0], CgroupRoot: args[1]})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := errors.Join(d.Create(maps.Sizes{}), d.Attach()); err != nil {
		return err
	}
	for _, c := range idleCases() {
		call, err := c.prepare()
		if err != nil {
			return fmt.Errorf("%s: %w", c.hook, err)
		}
		var with, without [idleRounds]time.Duration
		for i := range idleRounds {
			found := d.check()
			if err := errors.Join(found.Err(), cpuTime(&with[i], call)); err != nil {
				return fmt.Errorf("%s: %w", c.hook, err)
			}
			if err := errors.Join(d.links[c.hook].Detach(), cpuTime(&without[i], call)); err != nil {
				return fmt.Errorf("without %s: %w", c.hook, err)
			}
		}
		fmt.Printf("%s %.0f %.0f\n", c.hook, least(with[:]), least(without[:]))
	}
	found := d.check()
	return found.Err()
}

// msgProbe is MSG_PROBE of linux/socket.h.
const msgProbe = 0x10

// least returns the nanoseconds per call in the fastest round.
func least(rounds []time.Duration) float64 {
	best := math.Inf(1)
	for _, r := range rounds {
		if r > 0 { // the clock of a virtual machine may not advance
			best = min(best, float64(r)/idleCalls)
		}
	}
	return best
}

// cpuTime measures a round by the thread's CPU clock, which stops while others use the CPU.
func cpuTime(took *time.Duration, call func() error) error {
	var from, to unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from); err != nil {
		return err
	}
	for range idleCalls {
		if err := call(); err != nil {
			return err
		}
	}
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to)
	*took = time.Duration(to.Nano() - from.Nano())
	return err
}

// idleCase is a call that triggers a hook.
type idleCase struct {
	hook    string
	prepare func() (call func() error, err error)
}

func idleCases() []idleCase {
	loop4, loop6 := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}, &unix.SockaddrInet6{Addr: [16]byte{15: 1}, Port: 9}
	udp := func(family int, use func(fd int) (func() error, error)) func() (func() error, error) {
		return func() (func() error, error) {
			fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			return use(fd)
		}
	}
	connect := func(to unix.Sockaddr) func(int) (func() error, error) {
		return func(fd int) (func() error, error) { return func() error { return unix.Connect(fd, to) }, nil }
	}
	send := func(to unix.Sockaddr) func(int) (func() error, error) {
		return func(fd int) (func() error, error) {
			// The flags stop it once the route is found, so that the cost of sending does not hide
			// that of the hook.
			return func() error { return unix.Sendto(fd, nil, unix.MSG_CONFIRM|msgProbe, to) }, nil
		}
	}
	// Peeks at a waiting UDP packet and its sender.
	receive := func(at unix.Sockaddr) func(int) (func() error, error) {
		return func(fd int) (func() error, error) {
			if err := unix.Bind(fd, at); err != nil {
				return nil, err
			}
			self, err := unix.Getsockname(fd)
			if err != nil {
				return nil, err
			}
			text := make([]byte, 8)
			return func() error {
				_, _, err := unix.Recvfrom(fd, text, unix.MSG_PEEK)
				return err
			}, unix.Sendto(fd, text, 0, self)
		}
	}
	peer := func(to unix.Sockaddr) func(int) (func() error, error) {
		return func(fd int) (func() error, error) {
			return func() error { _, err := unix.Getpeername(fd); return err }, unix.Connect(fd, to)
		}
	}
	bind := func() (func() error, error) {
		at := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 33221}
		return func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return errors.Join(unix.Bind(fd, at), unix.Close(fd))
		}, nil
	}
	return []idleCase{
		{"sock_connect4", udp(unix.AF_INET, connect(loop4))}, {"sock_connect6", udp(unix.AF_INET6, connect(loop6))},
		{"sock_sendmsg4", udp(unix.AF_INET, send(loop4))}, {"sock_sendmsg6", udp(unix.AF_INET6, send(loop6))},
		{"sock_recvmsg4", udp(unix.AF_INET, receive(&unix.SockaddrInet4{Addr: loop4.Addr}))},
		{"sock_recvmsg6", udp(unix.AF_INET6, receive(&unix.SockaddrInet6{Addr: loop6.Addr}))},
		{"sock_peername4", udp(unix.AF_INET, peer(loop4))}, {"sock_peername6", udp(unix.AF_INET6, peer(loop6))},
		{"sock_bind4", bind}, {"sock_release", bind},
	}
}

// BenchmarkIdleHooks measures what each hook costs calls that have nothing to do with services. It
// makes one measurement of many rounds, whatever b.N.
func BenchmarkIdleHooks(b *testing.B) {
	rig.Root(b)
	bpffs, cgroup := rig.BPFFS(b), rig.NewCgroup(b)
	b.Cleanup(func() {
		if _, err := Cleanup(bpffs); err != nil {
			b.Error(err)
		}
	})
	out := rig.Child(b, cgroup, rig.NewNetns(b, "idle"), "idle", bpffs, cgroup.Path())
	for line := range strings.Lines(out) {
		var hook string
		var with, without float64
		if _, err := fmt.Sscan(line, &hook, &with, &without); err != nil {
			b.Fatalf("%q: %v", line, err)
		}
		fmt.Fprintf(os.Stdout, "%-15s %6.0f ns/call %6.0f without %+5.0f\n", hook, with, without, with-without)
	}
}
