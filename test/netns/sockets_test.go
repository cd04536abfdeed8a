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

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// op is a system call for a process to make on one of its sockets, which are numbered.
type op struct {
	Call   string // serve, open, connect, bind, send, receive, peer, close, listen, crowd, harmed, share
	Socket int
	Addr   netip.AddrPort
	Dual   bool // open: an IPv6 socket, whatever the address
	TCP    bool
	N      int           // crowd: the number of sockets, numbered from Socket on
	Limit  time.Duration // receive: the timeout, if not maxWait, which every socket starts with
}

// outcome is the result of an op.
type outcome struct {
	Err   string // why the process could not make the call; not the outcome of the call
	Errno syscall.Errno
	Addr  netip.AddrPort // where a datagram came from, or the peer
	Text  string         // the datagram; an echo server sends its own address
	N     int            // harmed: the number of sockets with an error, or that lost their peer
}

// socketsMain takes orders on its standard input, one line of JSON each, and answers with such
// lines.
func socketsMain([]string) int {
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	sockets := map[int]int{}
	for {
		var o op
		if err := orders.Decode(&o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		var out outcome
		if err := o.do(sockets, &out); err != nil && !errors.As(err, &out.Errno) {
			out.Err = err.Error()
		}
		if err := answers.Encode(out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

func (o op) family() int {
	if o.Dual || o.Addr.Addr().Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (o op) do(sockets map[int]int, out *outcome) error {
	fd := sockets[o.Socket]
	to := func() unix.Sockaddr {
		name, _ := unix.Getsockname(fd)
		if _, ok := name.(*unix.SockaddrInet6); ok {
			return sockaddr(unix.AF_INET6, o.Addr)
		}
		return sockaddr(unix.AF_INET, o.Addr)
	}
	switch o.Call {
	case "serve":
		return echo(o.Addr)
	case "open":
		kind := unix.SOCK_DGRAM
		if o.TCP {
			kind = unix.SOCK_STREAM
		}
		var err error
		if sockets[o.Socket], err = unix.Socket(o.family(), kind|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// A datagram that does not arrive is an outcome too.
		return limitWaits(sockets[o.Socket], o.TCP)
	case "connect":
		return unix.Connect(fd, to())
	case "bind":
		return unix.Bind(fd, to())
	case "send":
		if !o.Addr.IsValid() {
			_, err := unix.Write(fd, []byte("?"))
			return err
		}
		return unix.Sendto(fd, []byte("?"), 0, to())
	case "receive":
		return o.receive(fd, out)
	case "peer":
		name, err := unix.Getpeername(fd)
		if err == nil {
			out.Addr = addrPort(name)
		}
		return err
	case "close":
		delete(sockets, o.Socket)
		return unix.Close(fd)
	case "listen":
		return unix.Listen(fd, 16)
	case "crowd":
		return o.crowd(sockets, out)
	case "harmed":
		return harmed(sockets, out)
	case "share":
		return o.share(fd, out)
	}
	return fmt.Errorf("no such call: %q", o.Call)
}

func limitReceive(fd int, limit time.Duration) error {
	value := unix.NsecToTimeval(int64(limit))
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &value)
}

func (o op) receive(fd int, out *outcome) error {
	if o.Limit > 0 {
		if err := limitReceive(fd, o.Limit); err != nil {
			return err
		}
	}
	text := make([]byte, 64)
	n, from, err := receiveFrom(fd, text)
	if err == nil {
		out.Addr, out.Text = addrPort(from), string(text[:n])
	}
	return err
}

// receiveFrom receives by a socket whose waits are limited.
func receiveFrom(fd int, into []byte) (n int, from unix.Sockaddr, err error) {
	n, from, err = unix.Recvfrom(fd, into, 0)
	// Signals of the Go runtime; the kernel does not restart a receive with a timeout.
	for errors.Is(err, unix.EINTR) {
		n, from, err = unix.Recvfrom(fd, into, 0)
	}
	return n, from, err
}

// crowd opens many sockets that are connected to an address, or unconnected if none is given.
func (o op) crowd(sockets map[int]int, out *outcome) error {
	room := unix.Rlimit{Cur: 16384, Max: 16384}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &room); err != nil {
		return err
	}
	for i := range o.N {
		one := op{Call: "open", Socket: o.Socket + i, Addr: o.Addr, Dual: o.Dual, TCP: o.TCP}
		if err := one.do(sockets, out); err != nil {
			return err
		}
		if !o.Addr.IsValid() {
			continue
		}
		one.Call = "connect"
		if err := one.do(sockets, out); err != nil {
			return err
		}
	}
	return nil
}

func harmed(sockets map[int]int, out *outcome) error {
	for _, fd := range sockets {
		errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return err
		}
		if errno != 0 {
			out.N++
		}
	}
	return nil
}

// echo answers every datagram with the address that it was sent to, for the life of the process.
func echo(at netip.AddrPort) error {
	fd, err := unix.Socket(op{Addr: at}.family(), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(op{Addr: at}.family(), at)); err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 64)
		for {
			if _, from, err := unix.Recvfrom(fd, buffer, 0); err == nil {
				_ = unix.Sendto(fd, []byte(at.String()), 0, from)
			}
		}
	}()
	return nil
}

// program is a process that makes system calls on request.
type program struct {
	t       *testing.T
	process *rig.Process
	sockets int
}

func newProgram(t *testing.T, cgroup *rig.Cgroup, ns *rig.Netns) *program {
	t.Helper()
	return &program{t: t, process: rig.NewChild(t, cgroup, ns, "sockets")}
}

// do makes a call and returns its outcome.
func (p *program) do(o op) outcome {
	p.t.Helper()
	var out outcome
	if err := p.process.Ask(o, &out); err != nil {
		p.t.Fatal(err)
	}
	if out.Err != "" {
		p.t.Fatalf("%+v: %s", o, out.Err)
	}
	return out
}

// must makes a call that must succeed.
func (p *program) must(o op) outcome {
	p.t.Helper()
	out := p.do(o)
	if out.Errno != 0 {
		p.t.Fatalf("%+v: %v", o, out.Errno)
	}
	return out
}

func (p *program) serve(addrs ...netip.AddrPort) {
	p.t.Helper()
	for _, addr := range addrs {
		p.must(op{Call: "serve", Addr: addr})
	}
}

// udp opens a UDP socket that can use an address.
func (p *program) udp(like netip.AddrPort, dual bool) int {
	p.t.Helper()
	p.sockets++
	p.must(op{Call: "open", Socket: p.sockets, Addr: like, Dual: dual})
	return p.sockets
}

// ask sends a datagram and returns which server answered, and the sender that the socket reports.
func (p *program) ask(socket int, to netip.AddrPort) (server string, from netip.AddrPort) {
	p.t.Helper()
	p.must(op{Call: "send", Socket: socket, Addr: to})
	out := p.must(op{Call: "receive", Socket: socket})
	return out.Text, out.Addr
}
