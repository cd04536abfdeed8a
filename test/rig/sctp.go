package rig

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// SCTP skips the test if the kernel has no SCTP, unless FAIRLEAD_REQUIRE has "sctp".
func SCTP(t *testing.T) {
	t.Helper()
	socket, err := socketSCTP(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		Lacking(t, "sctp", "this kernel has no SCTP")
	}
	if err == nil {
		err = unix.Close(socket)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// socketSCTP returns a one-to-one SCTP socket of the address's family.
func socketSCTP(of netip.AddrPort) (int, error) {
	family := unix.AF_INET
	if of.Addr().Is6() {
		family = unix.AF_INET6
	}
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
}

func sockaddrSCTP(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}

// association is an SCTP connection, which takes no message larger than its buffer.
type association struct{ net.Conn }

func newAssociation(socket int) (net.Conn, error) {
	file := os.NewFile(uintptr(socket), "association")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use an association: %w", err)
	}
	return association{conn}, nil
}

// Write sends b in several messages.
func (a association) Write(b []byte) (sent int, err error) {
	for len(b) > 0 {
		n, err := a.Conn.Write(b[:min(len(b), 16<<10)])
		sent += n
		if err != nil {
			return sent, err
		}
		b = b[n:]
	}
	return sent, nil
}

// DialSCTP dials by SCTP from an address. An unbound socket tells the server all addresses of the
// machine, in both families, and the server soon probes each: where a probe reaches the client
// without translation, the client aborts the association it does not know.
func DialSCTP(from, to netip.AddrPort, limit time.Duration) (net.Conn, error) {
	socket, err := socketSCTP(to)
	if err != nil {
		return nil, err
	}
	if err = unix.Bind(socket, sockaddrSCTP(from)); err == nil {
		err = connectWithin(limit, socket, sockaddrSCTP(to))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial by SCTP: %w", err), unix.Close(socket))
	}
	return newAssociation(socket)
}

// connectWithin waits with poll: the Go runtime sends signals to its threads, and connect does not
// resume after one.
func connectWithin(limit time.Duration, socket int, to unix.Sockaddr) error {
	if err := unix.SetNonblock(socket, true); err != nil {
		return err
	}
	if err := unix.Connect(socket, to); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	for end := time.Now().Add(limit); ; {
		left := time.Until(end)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		ready := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLOUT}}
		n, err := unix.Poll(ready, int(left.Milliseconds())+1)
		if errors.Is(err, unix.EINTR) || n == 0 {
			continue
		}
		if err != nil {
			return err
		}
		code, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err
	}
}

// ServeSCTP gives each association with an address to a goroutine of its own, as long as the process
// lives.
func ServeSCTP(at netip.AddrPort, serve func(net.Conn)) error {
	socket, err := socketSCTP(at)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(socket, sockaddrSCTP(at)), unix.Listen(socket, 16)); err != nil {
		return fmt.Errorf("listen by SCTP: %w", err)
	}
	go func() {
		for {
			accepted, _, err := unix.Accept4(socket, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			if conn, err := newAssociation(accepted); err == nil {
				go serve(conn)
			}
		}
	}()
	return nil
}
