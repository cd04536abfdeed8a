package outside

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// SCTP associations from outside reach backends on this node and others, whether senders or devices
// compute their checksums.
func TestSCTP(t *testing.T) {
	rig.Root(t)
	if socket, err := socketSCTP(clientAddr.at(false, 0)); errors.Is(err, unix.EPROTONOSUPPORT) {
		rig.Lacking(t, "sctp", "this kernel has no SCTP")
	} else if err != nil {
		t.Fatal(err)
	} else if err := unix.Close(socket); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		settings
	}{
		{"sums left to devices", settings{sums: true, xdp: "off"}},
		{"every packet complete", settings{xdp: "off"}},
		{"XDP", settings{xdp: "native"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.services, test.sctp = true, true
			w := newWorld(t, test.settings)
			for _, p := range paths() {
				for _, v6 := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s %s", p.name, familyName(v6)), func(t *testing.T) {
						w.follow(t, p, v6, order{SCTP: true, Bytes: 5})
						w.follow(t, p, v6, order{SCTP: true, Bytes: 100_000})
						w.follow(t, p, v6, order{SCTP: true, Bytes: 5, From: 4001})
					})
				}
			}
		})
	}
}

func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}

// socketSCTP returns a one-to-one SCTP socket of the address's family.
func socketSCTP(of netip.AddrPort) (int, error) {
	family := unix.AF_INET
	if of.Addr().Is6() {
		family = unix.AF_INET6
	}
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
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

// associate dials by SCTP.
func (o order) associate() (net.Conn, error) {
	socket, err := socketSCTP(o.Dial)
	if err != nil {
		return nil, err
	}
	// An unbound socket tells the server all addresses of the machine, in both families, and the
	// server soon probes each: where a probe reaches the client without translation, the client
	// aborts the association it does not know.
	err = unix.Bind(socket, sockaddr(clientAddr.at(o.Dial.Addr().Is6(), o.From)))
	if err == nil {
		err = connectWithin(o.patience(), socket, sockaddr(o.Dial))
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

// serveSCTP echoes as long as the process lives.
func serveSCTP(at netip.AddrPort) error {
	socket, err := socketSCTP(at)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(socket, sockaddr(at)), unix.Listen(socket, 16)); err != nil {
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
				go echo(conn, at)
			}
		}
	}()
	return nil
}
