package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, rig.Funcs{"pod": podMain, "sockets": socketsMain, "congestion": congestionOfBothEnds}))
}

// order tells a pod what to do. Every address is an IP and a port.
type order struct {
	Listen netip.AddrPort // serve here, and tell every client the address
	Dial   netip.AddrPort // connect to this
	Redial netip.AddrPort // and then, with the same socket, to this; by TCP not from IPv4 to IPv6: the kernel goes on to send by IPv4
	Dual   bool           // dial IPv4 with an IPv6 socket
	UDP    bool
	Times  int // dial this often, each time with a new socket
}

// answer is the result of an order.
type answer struct {
	Err    string // why the pod could not carry out the order; not the outcome of a dial
	Errno  syscall.Errno
	Server netip.AddrPort // the server that answered the last dial
	Peer   netip.AddrPort // what getpeername returned
	Served map[string]int // dials by server
	Failed map[string]int // dials by error
}

// podMain takes orders on its standard input, one line of JSON each, and answers with such lines.
func podMain([]string) int {
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		a, err := o.do()
		if err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

func (o order) do() (answer, error) {
	if o.Listen.IsValid() {
		return answer{}, listen(o.Listen)
	}
	a := answer{Served: map[string]int{}, Failed: map[string]int{}}
	for range max(o.Times, 1) {
		if err := o.dial(&a); err != nil {
			return a, err
		}
		if a.Errno != 0 {
			a.Failed[a.Errno.Error()]++
		} else {
			a.Served[a.Server.String()]++
		}
	}
	return a, nil
}

// dial connects once, with plain system calls, so that nothing hides what the kernel returns.
func (o order) dial(a *answer) error {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if o.Dual || o.Dial.Addr().Is6() {
		family = unix.AF_INET6
	}
	if o.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	if err := limitWaits(fd, !o.UDP); err != nil {
		return fmt.Errorf("limit waits: %w", err)
	}
	if !o.UDP {
		// Close with a reset, so that many dials do not exhaust the ports.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fmt.Errorf("set linger: %w", err)
		}
	}
	for _, to := range []netip.AddrPort{o.Dial, o.Redial} {
		if !to.IsValid() {
			continue
		}
		if err := a.connect(fd, family, to, o.UDP); err != nil {
			return err
		}
		if a.Errno != 0 {
			return nil
		}
	}
	return nil
}

func (a *answer) connect(fd, family int, to netip.AddrPort, udp bool) error {
	a.Errno, a.Server, a.Peer = 0, netip.AddrPort{}, netip.AddrPort{}
	if err := disconnect(fd); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(family, to)); err != nil {
		if !errors.As(err, &a.Errno) {
			return fmt.Errorf("connect: %w", err)
		}
		return nil
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return fmt.Errorf("getpeername: %w", err)
	}
	a.Peer = addrPort(peer)
	if udp {
		return nil
	}
	text := make([]byte, 64)
	n, _, err := receiveFrom(fd, text)
	if err != nil {
		return fmt.Errorf("read from server: %w", err)
	}
	a.Server, err = netip.ParseAddrPort(string(text[:n]))
	return err
}

// maxWait is how long a call on a socket waits, unless a test says otherwise: much longer than between a
// client and a server on one machine, and much shorter than the kernel.
const maxWait = 5 * time.Second

// limitWaits ends the waits of a socket after maxWait: for data, and of a TCP socket also for a peer that does not
// acknowledge. A test in which one is not answered then fails with an error, and does not hang.
func limitWaits(fd int, tcp bool) error {
	if err := limitReceive(fd, maxWait); err != nil || !tcp {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(maxWait.Milliseconds()))
}

// disconnect makes a socket forget its peer, so that it can be connected again; an unconnected
// socket stays as it is.
func disconnect(fd int) error {
	unspecified := unix.RawSockaddrAny{Addr: unix.RawSockaddr{Family: unix.AF_UNSPEC}}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspecified)),
		unsafe.Sizeof(unspecified.Addr))
	if errno != 0 {
		return fmt.Errorf("disconnect: %w", errno)
	}
	return nil
}

func sockaddr(family int, to netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// listen serves for the life of the pod.
func listen(at netip.AddrPort) error {
	family := unix.AF_INET
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, sockaddr(family, at)), unix.Listen(fd, 1024),
	); err != nil {
		return fmt.Errorf("listen on %s: %w", at, err)
	}
	go func() {
		for {
			conn, _, err := unix.Accept(fd)
			if err != nil {
				continue // the client went away before it was accepted
			}
			_, _ = unix.Write(conn, []byte(at.String()))
			unix.Close(conn)
		}
	}()
	return nil
}

// pod is a process in its own network namespace and in a cgroup.
type pod struct {
	t       *testing.T
	process *rig.Process
}

func newPod(t *testing.T, cgroup *rig.Cgroup) *pod {
	t.Helper()
	return &pod{t: t, process: rig.NewChild(t, cgroup, rig.NewNetns(t, "pod"), "pod")}
}

// do sends one order and returns its result.
func (p *pod) do(o order) answer {
	p.t.Helper()
	var a answer
	if err := p.process.Ask(o, &a); err != nil {
		p.t.Fatal(err)
	}
	if a.Err != "" {
		p.t.Fatalf("order %+v: %s", o, a.Err)
	}
	return a
}

func (p *pod) listen(addrs ...netip.AddrPort) {
	p.t.Helper()
	for _, addr := range addrs {
		p.do(order{Listen: addr})
	}
}
