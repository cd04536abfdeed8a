package sockmap

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// patience limits every wait between two sockets of this process.
const patience = 5 * time.Second

// toBeSeen is how many messages each end must have received before it is noted.
const toBeSeen = 4

// exercise is a connection with both ends in this process, both nonblocking.
type exercise struct {
	client, server int
}

// loopbacks returns the addresses at which a process can connect to itself.
func loopbacks() []unix.Sockaddr {
	return []unix.Sockaddr{&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}}
}

// listener opens a listening socket on loopback, of either family.
func listener() (fd int, at unix.Sockaddr, err error) {
	for _, loopback := range loopbacks() {
		if fd, at, err = listen(loopback); err == nil {
			return fd, at, nil
		}
	}
	return -1, nil, err
}

// listen opens a listening socket and returns the address it is bound to.
func listen(at unix.Sockaddr) (fd int, bound unix.Sockaddr, err error) {
	family := unix.AF_INET
	if _, ok := at.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, nil, fmt.Errorf("listen on loopback: %w", err)
	}
	if err = errors.Join(unix.Bind(fd, at), unix.Listen(fd, 8)); err == nil {
		bound, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("listen on loopback: %w", err)
	}
	return fd, bound, nil
}

// connect opens a connection to a listener of this process.
func connect(listening int, at unix.Sockaddr) (e exercise, err error) {
	family := unix.AF_INET
	if _, ok := at.(*unix.SockaddrInet6); ok {
		family = unix.AF_INET6
	}
	if e.client, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return e, fmt.Errorf("connect: %w", err)
	}
	err = unix.Connect(e.client, at)
	if errors.Is(err, unix.EINPROGRESS) {
		err = waitFor(e.client, unix.POLLOUT)
	}
	var client unix.Sockaddr
	if err == nil {
		client, err = unix.Getsockname(e.client)
	}
	if err == nil {
		e.server, err = accept(listening, addrPortOf(client))
	}
	if err != nil {
		unix.Close(e.client)
		return e, fmt.Errorf("connect: %w", err)
	}
	return e, nil
}

// accept accepts the connection of a client. Others may dial as well, for example to see which
// ports are open; they are closed.
func accept(listening int, client netip.AddrPort) (fd int, err error) {
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if err := waitFor(listening, unix.POLLIN); err != nil {
			return -1, err
		}
		fd, from, err := unix.Accept4(listening, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch {
		case again(err) || errors.Is(err, unix.ECONNABORTED):
		case err != nil:
			return -1, err
		case addrPortOf(from) == client:
			return fd, nil
		default:
			unix.Close(fd)
		}
	}
	return -1, errors.New("timed out")
}

// close closes what is still open, once: a closed number may be another file's.
func (e *exercise) close() {
	for _, fd := range []*int{&e.client, &e.server} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
}

// waitFor waits until a socket is ready for some events.
func waitFor(fd int, events int16) error {
	for end := time.Now().Add(patience); ; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(poll, int(max(0, time.Until(end).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("timed out")
		default:
			return nil
		}
	}
}

// pattern returns a message whose bytes depend on their position and on the seed.
func pattern(seed, size int) []byte {
	message := make([]byte, size)
	for i := range message {
		message[i] = byte((i*131 + i>>8*17 + seed*29) >> 1)
	}
	return message
}

// say sends a message from one end, reads it at the other, and compares the two.
func say(from, to int, message []byte) error {
	got := make([]byte, 0, len(message)+1)
	piece := make([]byte, 64<<10)
	for sent, end := 0, time.Now().Add(patience); len(got) < len(message); {
		idle := true
		if sent < len(message) {
			n, err := unix.Write(from, message[sent:])
			if err != nil && !again(err) {
				return fmt.Errorf("send: %w", err)
			}
			sent += max(n, 0)
			idle = n <= 0
		}
		n, err := unix.Read(to, piece)
		if err != nil && !again(err) || n == 0 {
			return fmt.Errorf("read after %d bytes: %w", len(got), errors.Join(err, errEnded))
		}
		got = append(got, piece[:max(n, 0)]...)
		if idle && n <= 0 {
			if time.Now().After(end) {
				return fmt.Errorf("%d of %d bytes came: timed out", len(got), len(message))
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(to), Events: unix.POLLIN}}, 10); err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	}
	if !bytes.Equal(got, message) {
		return errWrong
	}
	return nil
}

var (
	errWrong = errors.New("what was read is not what was sent")
	errEnded = errors.New("the connection has ended")
)

func again(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

// converse makes the ends take turns.
func (e exercise) converse(times, size int) error {
	for i := range times {
		if err := say(e.client, e.server, pattern(i, size)); err != nil {
			return fmt.Errorf("request %d of %d bytes: %w", i, size, err)
		}
		if err := say(e.server, e.client, pattern(i+1, size)); err != nil {
			return fmt.Errorf("reply %d of %d bytes: %w", i, size, err)
		}
	}
	return nil
}

// alternate sends a megabyte each way in messages of all sizes, so many in a row that some bypass
// TCP and some do not.
func (e exercise) alternate() error {
	message := pattern(5, 1<<20)
	for _, way := range [][2]int{{e.client, e.server}, {e.server, e.client}} {
		for at, size := 0, 1; at < len(message); size = size*3%70_001 + 1 {
			end := min(at+size, len(message))
			if err := say(way[0], way[1], message[at:end]); err != nil {
				return fmt.Errorf("%d bytes at %d: %w", end-at, at, err)
			}
			at = end
		}
	}
	// Then messages that are all sent before any is read, so that data waits on both paths at once.
	for i := range 40 {
		if _, err := unix.Write(e.client, pattern(i, 500)); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	for i := range 40 {
		if err := expect(e.server, pattern(i, 500)); err != nil {
			return fmt.Errorf("message %d of 40: %w", i, err)
		}
	}
	return nil
}

// expect reads a message that has been sent, and compares it.
func expect(fd int, message []byte) error {
	got := make([]byte, len(message))
	for at := 0; at < len(got); {
		n, err := unix.Read(fd, got[at:])
		if err != nil && again(err) {
			err = waitFor(fd, unix.POLLIN)
			n = 0
		} else if err == nil && n == 0 {
			err = errEnded
		}
		if err != nil {
			return fmt.Errorf("read after %d of %d bytes: %w", at, len(got), err)
		}
		at += n
	}
	if !bytes.Equal(got, message) {
		return errWrong
	}
	return nil
}

// expectEnd reads the end of the connection, before which no more data may arrive.
func expectEnd(fd int) error {
	if err := waitFor(fd, unix.POLLIN); err != nil {
		return fmt.Errorf("wait for the end of the connection: %w", err)
	}
	n, err := unix.Read(fd, make([]byte, 1))
	if n > 0 {
		return errWrong
	}
	return err
}

// hoard sends messages without a reader until sending would block, and returns how much it could
// send. Then it reads everything.
func (e exercise) hoard(size, most int) (sent int, err error) {
	piece := pattern(3, size)
	for sent < most {
		n, err := unix.Write(e.client, piece)
		if n > 0 {
			sent += n
		}
		if n < len(piece) && (err == nil || again(err)) {
			break
		}
		if err != nil {
			return sent, fmt.Errorf("send: %w", err)
		}
	}
	if sent >= most {
		return sent, fmt.Errorf("%d bytes could be sent to an end that does not read", sent)
	}
	for at := 0; at < sent; at += len(piece) {
		if err := expect(e.server, piece[:min(len(piece), sent-at)]); err != nil {
			return sent, fmt.Errorf("read waiting data, after %d of %d bytes: %w", at, sent, err)
		}
	}
	return sent, nil
}

// Sizes of last messages, which no other message of an exercise has.
const (
	lastPending = 3001
	lastAtOnce  = 3002
)

// endPending sends a last message and shuts down the client's direction. The server still reads the
// message and replies.
func (e exercise) endPending() error {
	last := pattern(9, lastPending)
	if _, err := unix.Write(e.client, last); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := unix.Shutdown(e.client, unix.SHUT_WR); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	if err := errors.Join(expect(e.server, last), expectEnd(e.server)); err != nil {
		return err
	}
	if err := say(e.server, e.client, pattern(10, 3000)); err != nil {
		return fmt.Errorf("reply after the client's end: %w", err)
	}
	if err := unix.Shutdown(e.server, unix.SHUT_WR); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return expectEnd(e.client)
}

// endAtOnce closes the client right after it has sent a message.
func (e *exercise) endAtOnce() error {
	last := pattern(11, lastAtOnce)
	if _, err := unix.Write(e.client, last); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	unix.Close(e.client)
	e.client = -1
	return errors.Join(expect(e.server, last), expectEnd(e.server))
}

// endUnread closes the server while it has unread data, as if it had been killed. The client must
// notice.
func (e *exercise) endUnread() error {
	if _, err := unix.Write(e.client, pattern(12, 3000)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	unix.Close(e.server)
	e.server = -1
	if err := expectEnd(e.client); err != nil && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	return nil
}
