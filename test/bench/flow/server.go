package flow

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// serverReport is what a server counted until it was asked to report.
type serverReport struct {
	Operations uint64
	Bytes      uint64
	CPU        time.Duration
}

// count is what one thread of a server counted. It occupies its own cache line.
type count struct {
	operations, bytes atomic.Uint64
	_                 [48]byte
}

func (c *count) add(bytes int) {
	c.operations.Add(1)
	c.bytes.Add(uint64(bytes))
}

// server is the state that the threads of a server share.
type server struct {
	order
	fd     int
	counts []count
}

// serve listens, prints the address, and serves until its standard input ends. Then it reports.
func serve(o order) error {
	fd, address, err := listen(o)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.Address, err)
	}
	s := &server{order: o, fd: fd, counts: make([]count, o.Parallel)}
	before, err := cpuTime()
	if err != nil {
		return err
	}
	failed := make(chan error, o.Parallel)
	for i := range s.counts {
		go func() { failed <- onThread(o.CPU, func() error { return s.loop(&s.counts[i]) }) }()
	}
	fmt.Println(address)
	asked := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		asked <- err
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", o.Kind, err)
	case err := <-asked:
		if err != nil {
			return fmt.Errorf("wait for the end of the input: %w", err)
		}
	}
	after, err := cpuTime()
	if err != nil {
		return err
	}
	report := serverReport{CPU: after - before}
	for i := range s.counts {
		report.Operations += s.counts[i].operations.Load()
		report.Bytes += s.counts[i].bytes.Load()
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

func listen(o order) (int, netip.AddrPort, error) {
	kind := unix.SOCK_STREAM
	if o.Kind.datagrams() {
		kind = unix.SOCK_DGRAM
	}
	fd, err := newSocket(familyOf(o.Address), kind)
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(o.Address.Port()), Addr: o.Address.Addr().As16()}
	if o.Address.Addr().Is4() {
		to = &unix.SockaddrInet4{Port: int(o.Address.Port()), Addr: o.Address.Addr().As4()}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, netip.AddrPort{}, err
	}
	if err := unix.Bind(fd, to); err != nil {
		return 0, netip.AddrPort{}, err
	}
	if o.Kind == Send {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sendBuffer); err != nil {
			return 0, netip.AddrPort{}, err
		}
	}
	if kind == unix.SOCK_STREAM {
		if err := unix.Listen(fd, 4096); err != nil {
			return 0, netip.AddrPort{}, err
		}
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		return fd, netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return fd, netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	default:
		return 0, netip.AddrPort{}, fmt.Errorf("read address: unexpected type %T", bound)
	}
}

// loop serves one client or datagram after another. It only returns with an error.
func (s *server) loop(c *count) error {
	buffer := make([]byte, max(s.Size, 256<<10))
	switch s.Kind {
	case Datagram, Associate:
		return s.answerDatagrams(c, buffer)
	case Send:
		return s.acknowledge(c, buffer)
	}
	for {
		fd, err := accept(s.fd)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		if err := setNoDelay(fd); err != nil {
			return fmt.Errorf("set no delay: %w", err)
		}
		if s.Kind == Stream {
			err = s.drain(fd, c, buffer)
		} else {
			err = s.answer(fd, c, buffer[:s.Size])
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
			return err
		}
		if err := closeSocket(fd); err != nil {
			return fmt.Errorf("close: %w", err)
		}
	}
}

// answer echoes every request until the client closes the connection.
func (s *server) answer(fd int, c *count, request []byte) error {
	for {
		if err := readFull(fd, request); err != nil {
			return err
		}
		c.add(len(request))
		if err := writeFull(fd, request); err != nil {
			return err
		}
	}
}

// drain reads everything, and then sends the number of bytes.
func (s *server) drain(fd int, c *count, buffer []byte) error {
	total := uint64(0)
	for {
		n, err := read(fd, buffer)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		total += uint64(n)
	}
	c.operations.Add(total / uint64(s.Size))
	c.bytes.Add(total)
	binary.BigEndian.PutUint64(buffer, total)
	return writeFull(fd, buffer[:8])
}

// answerDatagrams echoes every datagram to its sender.
func (s *server) answerDatagrams(c *count, buffer []byte) error {
	var from sockaddr
	for {
		n, err := receiveFrom(s.fd, buffer, &from)
		if err != nil {
			return err
		}
		c.add(n)
		if err := sendTo(s.fd, buffer[:n], &from); err != nil {
			return err
		}
	}
}

// acknowledge counts datagrams, one batch each time the bell rings, and answers the last of the
// batch.
func (s *server) acknowledge(c *count, buffer []byte) error {
	bell, err := openBell(s.Bell)
	if err != nil {
		return err
	}
	var from sockaddr
	for {
		var rung [1]byte
		if _, err := read(bell, rung[:]); err != nil {
			return fmt.Errorf("wait for the bell: %w", err)
		}
		for range batch {
			n, err := receiveFrom(s.fd, buffer, &from)
			if err != nil {
				return err
			}
			c.add(n)
		}
		if err := sendTo(s.fd, buffer[:1], &from); err != nil {
			return err
		}
	}
}
