package sockmap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// take returns one end of a connection, the function that reads there as the script says, and one that releases what
// that needs.
func (s *script) take(side int, conn *net.TCPConn) (end sender, read func([]byte) (int, error), closeReader func(), err error) {
	if s.ways[side] == resting {
		b, err := newBare(conn)
		if err != nil {
			return nil, nil, nil, err
		}
		read, closeReader, err = b.reader()
		return b, read, closeReader, err
	}
	read, closeReader, err = s.reader(side, conn)
	return conn, read, closeReader, err
}

func (s *script) reader(side int, conn *net.TCPConn) (read func([]byte) (int, error), closeReader func(), err error) {
	switch s.ways[side] {
	case waiting, levelled:
		file, err := conn.File() // this makes both block, so the writes through conn do too
		if err != nil {
			return nil, nil, err
		}
		fd := int(file.Fd())
		if s.ways[side] == levelled {
			err = unix.SetNonblock(fd, true)
			return func(p []byte) (int, error) { return readPolled(fd, p) }, func() { file.Close() }, err
		}
		limit := unix.NsecToTimeval(patience.Nanoseconds())
		err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)) // writes block now too
		return func(p []byte) (int, error) { return s.readWaiting(fd, p) }, func() { file.Close() }, err
	}
	peeks := s.ways[side] == peeking
	return func(p []byte) (int, error) {
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return 0, err
		}
		if peeks {
			return readPeeking(conn, p)
		}
		return conn.Read(p)
	}, func() {}, nil
}

func result(n int, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// readWaiting reads with a blocking call. The Go runtime's signals interrupt it all the time.
func (s *script) readWaiting(fd int, p []byte) (int, error) {
	for {
		began := time.Now()
		n, err := unix.Read(fd, p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			if time.Since(began) >= patience { // SO_RCVTIMEO
				return 0, os.ErrDeadlineExceeded
			}
			s.retried.Add(1)
			continue
		}
		return result(n, err)
	}
}

func readPolled(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return result(n, err)
		}
		events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		ready, err := unix.Poll(events, int(patience.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		if err == nil && ready == 0 {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// readAll reads by readPolled until it has as many bytes as there should be: what was sent at once may come in parts.
func readAll(fd, want int) ([]byte, error) {
	got := make([]byte, want)
	for have := 0; have < want; {
		n, err := readPolled(fd, got[have:])
		if err != nil {
			return got[:have], err
		}
		have += n
	}
	return got, nil
}

// readPeeking checks with MSG_PEEK what it is about to read.
func readPeeking(conn *net.TCPConn, p []byte) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	seen := make([]byte, len(p))
	peeked := 0
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		peeked, _, failed = unix.Recvfrom(int(fd), seen, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	n, err := conn.Read(p)
	if same := min(n, peeked); string(seen[:same]) != string(p[:same]) {
		return 0, fmt.Errorf("it is not what was to be seen before: %w", errWrong)
	}
	return n, err
}
