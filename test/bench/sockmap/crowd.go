package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// crowd is many connections served by one thread, as in a server or a proxy.
type crowd struct {
	ep     int
	conns  map[int32]*member
	buffer []byte
	calls  uint64 // number of system calls
}

// member is one connection of a crowd.
type member struct {
	*conn
	other *member // the connection that data is forwarded to
	have  int     // bytes read of the current message
	ended bool    // its peer has closed its direction
}

func (w *worker) newCrowd() (*crowd, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return &crowd{ep: ep, conns: map[int32]*member{}, buffer: w.buffer}, err
}

// add adds a connection.
func (c *crowd) add(fd int) (*member, error) {
	one, err := newConn(fd, blocking)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, err
	}
	m := &member{conn: one}
	c.conns[int32(fd)] = m
	return m, unix.EpollCtl(c.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// leave closes one connection.
func (c *crowd) leave(m *member) error {
	delete(c.conns, int32(m.fd))
	return m.end()
}

// close closes all connections.
func (c *crowd) close() error {
	errs := []error{unix.Close(c.ep)}
	for _, m := range c.conns {
		errs = append(errs, c.leave(m))
	}
	return errors.Join(errs...)
}

// say writes all of p and waits for room if there is none, without serving other connections
// meanwhile.
func (c *crowd) say(m *member, p []byte) error {
	for at := 0; at < len(p); {
		n, err := write(m.fd, p[at:])
		c.calls++
		switch {
		case err == nil:
			at += n
		case errors.Is(err, unix.EAGAIN):
			c.calls++
			room := unix.PollFd{Fd: int32(m.fd), Events: unix.POLLOUT}
			if _, err := call(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&room)), 1, 0, 0, 0, 0); err != nil {
				return err
			}
		default:
			return err
		}
	}
	return nil
}

// turn waits until connections can be read, or until a time-out, and calls handle for each. It
// returns how many there were.
func (c *crowd) turn(wait time.Duration, handle func(m *member, p []byte) error) (int, error) {
	var events [64]unix.EpollEvent
	limit, at := unix.NsecToTimespec(int64(wait)), uintptr(0)
	if wait >= 0 {
		at = uintptr(unsafe.Pointer(&limit))
	}
	n, err := call(unix.SYS_EPOLL_PWAIT2, uintptr(c.ep), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), at, 0, 0)
	c.calls++
	if err != nil {
		return 0, err
	}
	for _, event := range events[:n] {
		m := c.conns[event.Fd]
		if m == nil {
			continue // closed while handling an earlier event
		}
		got, err := read(m.fd, c.buffer[:64<<10])
		c.calls++
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return n, err
		}
		m.got += uint64(got)
		if err := handle(m, c.buffer[:got]); err != nil {
			return n, err
		}
	}
	return n, nil
}

// entertain answers the messages of many connections until all have ended.
func (w *worker) entertain(o order, r *reply) error {
	c, err := w.newCrowd()
	if err != nil {
		return err
	}
	for range o.Count {
		fd, err := accept(w.listener)
		if err == nil {
			_, err = c.add(fd)
		}
		if err != nil {
			return err
		}
	}
	answer := make([]byte, o.Size)
	for len(c.conns) > 0 {
		if _, err := c.turn(-1, func(m *member, p []byte) error {
			if len(p) == 0 {
				return c.leave(m)
			}
			r.Bytes += uint64(len(p))
			for m.have += len(p); m.have >= o.Size; m.have -= o.Size {
				if err := c.say(m, answer); err != nil {
					return err
				}
				r.Done++
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return c.close()
}

// gather opens many connections.
func (w *worker) gather(o order, r *reply) (err error) {
	if w.crowd, err = w.newCrowd(); err != nil {
		return err
	}
	for range o.Count {
		fd, err := dial(o.At)
		if err == nil {
			_, err = w.crowd.add(fd)
		}
		if err != nil {
			return err
		}
		r.Done++
	}
	return nil
}

func (w *worker) scatter(order, *reply) error {
	c := w.crowd
	w.crowd = nil
	return c.close()
}

// perSecond is the rate of requests of all connections together.
const perSecond = 2000

// burst sends a request on every connection at the same time, and again at intervals that give the
// rate perSecond, as fortio's threads do. If Way is "flood", it does not wait in between. The time
// of a request counts from when it was due.
func (w *worker) burst(o order, r *reply) error {
	c, message := w.crowd, make([]byte, o.Size)
	every := time.Second * time.Duration(len(c.conns)) / perSecond
	if o.Way == flood {
		every = 0
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return err
	}
	due := time.Since(w.epoch)
	for range o.Count {
		for wait := due - time.Since(w.epoch); wait > 0; wait = due - time.Since(w.epoch) {
			if n, err := c.turn(wait, unasked); err != nil || n > 0 {
				return fmt.Errorf("%d connections sent data without a request: %w", n, err)
			}
		}
		if every == 0 {
			due = time.Since(w.epoch)
		}
		for _, m := range c.conns {
			m.have = 0
			if err := c.say(m, message); err != nil {
				return err
			}
		}
		for left := len(c.conns); left > 0; {
			if _, err := c.turn(-1, func(m *member, p []byte) error {
				if len(p) == 0 {
					return io.ErrUnexpectedEOF
				}
				if m.have += len(p); m.have == o.Size {
					w.times = append(w.times, float64(time.Since(w.epoch)-due))
					r.Done++
					left--
				}
				return nil
			}); err != nil {
				return err
			}
		}
		due += every
	}
	return nil
}

const flood = "flood"

func unasked(*member, []byte) error { return nil }

// forward is a proxy: it forwards data from connections that it accepts to others that it opens,
// and back.
func (w *worker) forward(o order, r *reply) error {
	c, err := w.newCrowd()
	if err != nil {
		return err
	}
	for range o.Count {
		near, far, err := w.meet(o.At)
		if err != nil {
			return err
		}
		a, err := c.add(near)
		if err != nil {
			return err
		}
		if a.other, err = c.add(far); err != nil {
			return err
		}
		a.other.other = a
	}
	for len(c.conns) > 0 {
		if _, err := c.turn(-1, c.pass); err != nil {
			return err
		}
	}
	r.Calls = c.calls
	return c.close()
}

// meet accepts a connection and opens the one to forward it to.
func (w *worker) meet(to netip.AddrPort) (near, far int, err error) {
	if near, err = accept(w.listener); err == nil {
		far, err = dial(to)
	}
	return near, far, err
}

func (c *crowd) pass(m *member, p []byte) error {
	if len(p) > 0 {
		return c.say(m.other, p)
	}
	m.ended = true
	if m.other.ended {
		return errors.Join(c.leave(m), c.leave(m.other))
	}
	return errors.Join(
		unix.EpollCtl(c.ep, unix.EPOLL_CTL_DEL, m.fd, nil),
		unix.Shutdown(m.other.fd, unix.SHUT_WR),
	)
}

// portsOf returns the ports by which the programs identify a socket.
func portsOf(fd int) (p relayPorts, err error) {
	name, err := localOf(fd)
	if err != nil {
		return p, err
	}
	var raw [unix.SizeofSockaddrInet4]byte
	size := uint32(len(raw))
	if _, err := call(unix.SYS_GETPEERNAME, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0, 0, 0); err != nil {
		return p, err
	}
	return relayPorts{Local: uint32(name.Port()), Remote: uint32(binary.BigEndian.Uint16(raw[2:]))}, nil
}
