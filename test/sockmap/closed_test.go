package sockmap

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/sockmap"
)

// TestWriteAfterEnd checks that nothing bypasses TCP once TCP would not take it: after a socket has
// been shut down, or once the other end has left the connection.
func TestWriteAfterEnd(t *testing.T) {
	for _, how := range []string{"shut", "leave"} {
		t.Run(how, func(t *testing.T) {
			w := newTwoPods(t, sockmap.DefaultLimits())
			c := w.dial(server4)
			w.Until("it to go past TCP", func() bool {
				c.ask(10, 100)
				list := w.pairs()
				return len(list) == 1 && list[0].State == "accelerated"
			})
			c.ask(10, 100)
			c.ok("%s", how)
		})
	}
}

// shut checks that the client cannot send any more after it has shut down, while the server can.
func (e ends) shut() error {
	if err := errors.Join(e.client.CloseWrite(), e.server.SetReadDeadline(time.Now().Add(patience))); err != nil {
		return err
	}
	if n, err := e.server.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("the server reads %d bytes, %w", n, err)
	}
	if _, err := e.client.Write(pattern(0, 100)); !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("the client sends: %w", err)
	}
	return say(e.server, e.client, 1, 100)
}

// leave checks that the client cannot send any more once the server's socket has left the
// connection.
func (e ends) leave() error {
	nobody := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if err := e.raw(func(fd int) error {
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&nobody)), unsafe.Sizeof(nobody)); errno != 0 {
			return errno
		}
		return nil
	}); err != nil {
		return err
	}
	if err := e.client.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if n, err := e.client.Read(make([]byte, 1)); n != 0 || !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("the client reads %d bytes, %w", n, err)
	}
	if _, err := e.client.Write(pattern(0, 100)); !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("the client sends: %w", err)
	}
	return nil
}
