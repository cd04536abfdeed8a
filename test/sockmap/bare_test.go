package sockmap

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sender is what sends at an end of a connection.
type sender interface {
	io.WriteCloser
	syscall.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(seconds int) error
	SetNoDelay(on bool) error
	SetWriteDeadline(at time.Time) error
}

// bare is an end of a connection that is not in the edge-triggered epoll of Go's runtime. It does not block.
type bare struct {
	fd     atomic.Int32 // -1 once it is closed
	writes time.Time    // until when
}

// newBare takes an end away from Go's runtime.
func newBare(conn *net.TCPConn) (*bare, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &bare{}
	err = control(func(fd int) error {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		b.fd.Store(int32(own))
		return err
	})("", "", raw)
	if err != nil {
		return nil, err
	}
	return b, conn.Close() // which also ends what the runtime's epoll knows of it
}

// reader returns a function that reads by an edge-triggered epoll of its own whenever it is told anything, and takes a
// short read for an empty socket.
func (b *bare) reader() (read func([]byte) (int, error), closeReader func(), err error) {
	fd, err := unix.FcntlInt(uintptr(b.fd.Load()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	r, err := newEdgeReader(fd, true)
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(fd))
	}
	return r.readSome, func() { _ = r.close(); _ = unix.Close(fd) }, nil
}

func (b *bare) Close() error {
	if fd := b.fd.Swap(-1); fd >= 0 {
		return unix.Close(int(fd))
	}
	return net.ErrClosed
}

func (b *bare) CloseRead() error { return unix.Shutdown(int(b.fd.Load()), unix.SHUT_RD) }

func (b *bare) CloseWrite() error { return unix.Shutdown(int(b.fd.Load()), unix.SHUT_WR) }

func (b *bare) SetLinger(seconds int) error {
	return unix.SetsockoptLinger(int(b.fd.Load()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(seconds)})
}

func (b *bare) SetNoDelay(on bool) error {
	value := 0
	if on {
		value = 1
	}
	return unix.SetsockoptInt(int(b.fd.Load()), unix.IPPROTO_TCP, unix.TCP_NODELAY, value)
}

func (b *bare) SetWriteDeadline(at time.Time) error {
	b.writes = at
	return nil
}

func (b *bare) Write(p []byte) (written int, err error) {
	var failed error
	err = bareSocket{b}.Write(func(fd uintptr) bool {
		n := 0
		if n, failed = unix.Write(int(fd), p[written:]); failed == nil {
			written += n
		}
		return written == len(p) || failed != nil && !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	return written, cmp.Or(err, failed)
}

// SyscallConn returns what gives access to the socket.
func (b *bare) SyscallConn() (syscall.RawConn, error) { return bareSocket{b}, nil }

// bareSocket is the socket of a bare end.
type bareSocket struct{ *bare }

// Control calls a function with the socket.
func (s bareSocket) Control(call func(fd uintptr)) error {
	call(uintptr(s.fd.Load()))
	return nil
}

// Read is not how a bare end is read.
func (s bareSocket) Read(func(fd uintptr) bool) error { return errors.ErrUnsupported }

// Write calls a function until it says that it has written, each time once there is room.
func (s bareSocket) Write(call func(fd uintptr) bool) error {
	for !call(uintptr(s.fd.Load())) {
		left := time.Until(s.writes)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		room := []unix.PollFd{{Fd: s.fd.Load(), Events: unix.POLLOUT}}
		if _, err := unix.Poll(room, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}
