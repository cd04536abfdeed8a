package sockmap

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/sockmap"
)

// TestSends checks that data sent by a call that the programs do not recognize uses TCP, and
// arrives in order with the data that bypasses TCP.
func TestSends(t *testing.T) {
	for _, how := range []string{"sendfile", "sendmmsg"} {
		t.Run(how, func(t *testing.T) {
			w, c := short(t, sockmap.DefaultLimits())
			before := w.only().Redirected[0]
			c.ok("%s", how)
			tallies, err := w.Tallies()
			w.Must(err)
			if p := w.only(); p.State != "accelerated" || p.Redirected[0] != before+100 || tallies.Passed["call"].Count == 0 {
				t.Errorf("%d bytes went past TCP before: %+v, %+v", before, p, tallies)
			}
			c.ask(10, 100)
		})
	}
}

// sendBy sends from the client with write and then with another call, and has the server read both.
func (e ends) sendBy(how string) error {
	if _, err := e.client.Write(pattern(1, 100)); err != nil {
		return err
	}
	raw, err := e.client.SyscallConn()
	if err != nil {
		return err
	}
	send := map[string]func(fd int, message []byte) error{"sendfile": sendFile, "sendmmsg": sendMany}[how]
	if err := control(func(fd int) error { return send(fd, pattern(2, 100)) })("", "", raw); err != nil {
		return err
	}
	return errors.Join(hear(e.server, pattern(1, 100)), hear(e.server, pattern(2, 100)))
}

func sendFile(fd int, message []byte) error {
	file, err := os.CreateTemp("", "fairlead-test-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.WriteAt(message, 0); err != nil {
		return err
	}
	n, err := unix.Sendfile(fd, int(file.Fd()), nil, len(message))
	if err == nil && n < len(message) {
		err = fmt.Errorf("%d bytes are sent", n)
	}
	return err
}

// header is struct mmsghdr.
type header struct {
	unix.Msghdr
	Len uint32
	_   uint32
}

func headerOf(message []byte) *header {
	iov := &unix.Iovec{Base: &message[0], Len: uint64(len(message))}
	return &header{Msghdr: unix.Msghdr{Iov: iov, Iovlen: 1}}
}

func sendMany(fd int, message []byte) error { return many(unix.SYS_SENDMMSG, fd, message) }

// readBy has the server read in a way other than by read and recv.
func (e ends) readBy(how string, n []int) error {
	switch how {
	case "recvmmsg":
		return e.receiveMany()
	case "mapped":
		return e.mapped()
	}
	return e.receiveByURing(n[0] == 1)
}

// receiveMany has the server read with recvmmsg.
func (e ends) receiveMany() error {
	if _, err := e.client.Write(pattern(1, 100)); err != nil {
		return err
	}
	return e.raw(func(fd int) error { return many(unix.SYS_RECVMMSG, fd, make([]byte, 100)) })
}

func many(call uintptr, fd int, message []byte) error {
	h := headerOf(message)
	if _, _, errno := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(h)), 1, unix.MSG_DONTWAIT, 0, 0); errno != 0 {
		return errno
	}
	if int(h.Len) != len(message) {
		return fmt.Errorf("it did %d bytes", h.Len)
	}
	return nil
}

// mapped has the server read by TCP_ZEROCOPY_RECEIVE. So few bytes are less than a page, so the
// kernel maps none of them, and the server reads them with read.
func (e ends) mapped() error {
	room := os.Getpagesize()
	return e.raw(func(fd int) error {
		addr, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(room), unix.PROT_READ, unix.MAP_SHARED, uintptr(fd), 0)
		if errno != 0 {
			return fmt.Errorf("map the socket: %w", errno)
		}
		if _, err := e.client.Write(pattern(1, 100)); err != nil {
			return err
		}
		take := struct { // struct tcp_zerocopy_receive
			addr      uint64
			len, hint uint32
		}{uint64(addr), uint32(room), 0}
		size := uint32(unsafe.Sizeof(take))
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_ZEROCOPY_RECEIVE,
			uintptr(unsafe.Pointer(&take)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
			return fmt.Errorf("read without copies: %w", errno)
		}
		if take.len != 0 {
			return fmt.Errorf("%d bytes come without copies", take.len)
		}
		got := make([]byte, 100)
		if n, err := unix.Read(fd, got); err != nil || string(got[:n]) != string(pattern(1, 100)) {
			return errors.Join(err, errWrong)
		}
		return nil
	})
}

// set sets an option of the server's socket.
func (e ends) set(what string) error {
	option := map[string][2]int{
		"zerocopy": {unix.SO_ZEROCOPY, 1},
		"stamp":    {unix.SO_TIMESTAMP, 1},
		"stamping": {unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_SOFTWARE},
		"peekoff":  {unix.SO_PEEK_OFF, 0},
	}[what]
	return e.raw(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option[0], option[1]) })
}

// TestPeekOff checks that a socket that peeks from where its last peek ended is left to TCP.
func TestPeekOff(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	c := w.dial(server4)
	c.ask(6, 100)
	switch answer := c.do("peekoff"); {
	case strings.Contains(answer, "not supported"):
		t.Log("this kernel has no SO_PEEK_OFF for TCP")
	case answer != "ok":
		t.Error(answer)
	default:
		c.ask(20, 100)
		w.excluded(c, "control")
	}
}

// TestUrgent checks that urgent data arrives as urgent data, and excludes a connection, even while
// nothing bypasses TCP: it tells a reader of more than there is to read.
func TestUrgent(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprint("held ", held), func(t *testing.T) {
			w, c := short(t, sockmap.DefaultLimits())
			if held {
				w.Stop() // or the sockets might leave first
				_, err := sockmap.Hold(w.BPFFS)
				w.Must(err)
			}
			c.ok("urgent")
			if held {
				w.Start()
			}
			c.ask(10, 100)
			w.excluded(c, "urgent")
		})
	}
}
