package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the timed loops. Like those of package flow they bypass Go's poller and
// scheduler, but here a program can also wait in epoll, as proxies and servers do and as the
// default limits of conversations assume.

func call(trap, a, b, c, d, e, f uintptr) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(trap, a, b, c, d, e, f)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func read(fd int, p []byte) (int, error) {
	return call(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
}

func write(fd int, p []byte) (int, error) {
	return call(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
}

// The ways in which a process waits.
const (
	epoll    = "epoll"    // non-blocking sockets and epoll, as in nginx and Envoy
	blocking = "blocking" // blocking calls, as in netperf
)

// conn is an end of a connection.
type conn struct {
	fd      int
	in, out int // epoll instances; 0: none
	got     uint64
}

// newConn makes a socket wait in the given way.
func newConn(fd int, way string) (*conn, error) {
	c := &conn{fd: fd}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return c, err // EOPNOTSUPP only means that this is a Unix socket
	}
	if way == blocking {
		return c, nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return c, err
	}
	var err error
	c.in, err = watch(fd, unix.EPOLLIN)
	return c, err
}

// watch returns an epoll instance for one socket.
func watch(fd int, events uint32) (int, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, err
	}
	return ep, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// await waits for events of an epoll instance.
func await(ep int, events []unix.EpollEvent) (int, error) {
	return call(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), ^uintptr(0), 0, 0)
}

// some waits until there is something to read, and reads it. It returns io.EOF at the end.
func (c *conn) some(p []byte) (int, error) {
	var events [1]unix.EpollEvent
	for {
		if c.in != 0 {
			if _, err := await(c.in, events[:]); err != nil {
				return 0, err
			}
		}
		n, err := read(c.fd, p)
		if errors.Is(err, unix.EAGAIN) { // past TCP, blocking reads return this too when a signal arrives
			continue
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		c.got += uint64(n)
		return n, err
	}
}

// fill reads until p is full.
func (c *conn) fill(p []byte) error {
	for at := 0; at < len(p); {
		n, err := c.some(p[at:])
		if err != nil {
			return err
		}
		at += n
	}
	return nil
}

// say writes all of p, and waits while there is no room.
func (c *conn) say(p []byte) error {
	var events [1]unix.EpollEvent
	for at := 0; at < len(p); {
		n, err := write(c.fd, p[at:])
		switch {
		case err == nil:
			at += n
		case !errors.Is(err, unix.EAGAIN) || c.in == 0:
			return err
		case c.out == 0:
			if c.out, err = watch(c.fd, unix.EPOLLOUT); err != nil {
				return err
			}
		default:
			if _, err := await(c.out, events[:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// end closes the connection.
func (c *conn) end() error {
	var errs []error
	for _, fd := range []int{c.in, c.out, c.fd} {
		if fd != 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// sockaddr converts an address to the kernel's format.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// listen opens a listening socket.
func listen(at netip.AddrPort) (int, netip.AddrPort, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, at, err
	}
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		return 0, at, err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return 0, at, err
	}
	at, err = localOf(fd)
	return fd, at, err
}

// listenUnix opens a listening Unix socket at a path.
func listenUnix(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return 0, err
	}
	return fd, unix.Listen(fd, 16)
}

// dialUnix connects to a Unix socket.
func dialUnix(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	return fd, unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

// localOf returns the address of a socket.
func localOf(fd int) (netip.AddrPort, error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	v4, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("the IPv4 socket has the address %v", name)
	}
	return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), uint16(v4.Port)), nil
}

func accept(listener int) (int, error) {
	return call(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
}

// dial opens a socket and connects it.
func dial(to netip.AddrPort) (int, error) {
	fd, err := call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0, 0, 0, 0)
	if err != nil {
		return 0, err
	}
	var raw [unix.SizeofSockaddrInet4]byte
	binary.NativeEndian.PutUint16(raw[:], unix.AF_INET)
	binary.BigEndian.PutUint16(raw[2:], to.Port())
	copy(raw[4:], to.Addr().AsSlice())
	_, err = call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(len(raw)), 0, 0, 0)
	return fd, err
}

// pinLoop keeps Go out of the way of a loop on this thread: no garbage collection, no preemption.
func pinLoop() error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(256 << 20) // orders and replies are small but many
	runtime.GOMAXPROCS(4)
	var signals unix.Sigset_t
	signals.Val[0] = 1 << (unix.SIGURG - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &signals, nil); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	return nil
}

// pin makes this thread run on one CPU, or on any.
func pin(cpu int) error {
	var cpus unix.CPUSet
	for i := range runtime.NumCPU() {
		if cpu == anyCPU || cpu == i {
			cpus.Set(i)
		}
	}
	if err := unix.SchedSetaffinity(0, &cpus); err != nil {
		return fmt.Errorf("run on CPU %d: %w", cpu, err)
	}
	return nil
}

// anyCPU leaves the choice of the CPU to the scheduler.
const anyCPU = -1

// usage is the resource usage of this thread.
type usage struct {
	CPU   time.Duration
	Waits int64 // number of times it has slept
}

func usageNow() (usage, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return usage{}, fmt.Errorf("read CPU time: %w", err)
	}
	return usage{time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Nvcsw}, nil
}
