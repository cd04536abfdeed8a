package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The ways in which a proxy forwards data that it does not look at.
const (
	wayEpoll  = "read and write, epoll"
	wayWait   = "read and write, waiting"
	waySplice = "splice, waiting"
	wayAIO    = "io_submit, waiting"
	wayKernel = "in the kernel"
)

// lane forwards in one direction on its own thread, with blocking calls.
type lane struct {
	from, to int
	calls    uint64
	usage
}

const laneSize = 64 << 10

// run forwards until the sender closes its direction.
func (l *lane) run(way string) error {
	before, err := usageNow()
	if err != nil {
		return err
	}
	switch way {
	case waySplice:
		err = l.splice()
	case wayAIO:
		err = l.submit()
	default:
		err = l.copy()
	}
	after, failed := usageNow()
	l.CPU, l.Waits = after.CPU-before.CPU, after.Waits-before.Waits
	return errors.Join(err, failed, unix.Shutdown(l.to, unix.SHUT_WR))
}

func (l *lane) copy() error {
	buffer := make([]byte, laneSize)
	for {
		n, err := read(l.from, buffer)
		if err != nil || n == 0 {
			return err
		}
		if _, err := write(l.to, buffer[:n]); err != nil { // a blocking call writes everything
			return err
		}
		l.calls += 2
	}
}

func (l *lane) splice() error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for {
		n, err := call(unix.SYS_SPLICE, uintptr(l.from), 0, uintptr(pipe[1]), 0, laneSize, unix.SPLICE_F_MOVE)
		if err != nil || n == 0 {
			return err
		}
		l.calls++
		for n > 0 {
			m, err := call(unix.SYS_SPLICE, uintptr(pipe[0]), 0, uintptr(l.to), 0, uintptr(n), unix.SPLICE_F_MOVE)
			if err != nil {
				return err
			}
			l.calls++
			n -= m
		}
	}
}

// iocb is an operation in the kernel's format.
type iocb struct {
	data   uint64
	_      [2]uint32
	opcode uint16
	_      int16
	fd     uint32
	buffer unsafe.Pointer
	bytes  uint64
	_      [3]uint64 // including the offset, which sockets do not have
}

// aioRing is the memory in which the kernel reports completed operations.
type aioRing struct {
	id, nr, head, tail, magic, compat, incompat, length uint32
}

type aioEvent struct {
	data, object uint64
	result, _    int64
}

// submit writes what it has read and reads again, in one call.
func (l *lane) submit() error {
	const read, write = 0, 1
	var context uintptr
	if _, err := call(unix.SYS_IO_SETUP, 8, uintptr(unsafe.Pointer(&context)), 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set up AIO: %w", err)
	}
	defer unix.RawSyscall(unix.SYS_IO_DESTROY, context, 0, 0)
	ring := *(**aioRing)(unsafe.Pointer(&context))
	buffer := make([]byte, laneSize)
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&buffer[0])
	in := &iocb{data: 1, opcode: read, fd: uint32(l.from), buffer: unsafe.Pointer(&buffer[0]), bytes: laneSize}
	out := &iocb{data: 2, opcode: write, fd: uint32(l.to), buffer: unsafe.Pointer(&buffer[0])}
	pinned.Pin(in)
	pinned.Pin(out)
	list := [2]*iocb{out, in}
	pinned.Pin(&list)
	for first := 1; ; first = 0 {
		want := 2 - first
		if n, err := call(unix.SYS_IO_SUBMIT, context, uintptr(want), uintptr(unsafe.Pointer(&list[first])), 0, 0, 0); err != nil || n != want {
			return fmt.Errorf("submit %d operations: %d, %w", want, n, err)
		}
		l.calls++
		for range want {
			if ring.head == atomic.LoadUint32(&ring.tail) {
				return errors.New("a blocking operation has not completed")
			}
			event := (*aioEvent)(unsafe.Add(unsafe.Pointer(ring), uintptr(ring.length)+uintptr(ring.head)*unsafe.Sizeof(aioEvent{})))
			if event.result < 0 {
				return unix.Errno(-event.result)
			}
			if event.data == 1 {
				out.bytes = uint64(event.result)
			}
			atomic.StoreUint32(&ring.head, (ring.head+1)%ring.nr)
		}
		if out.bytes == 0 {
			return nil
		}
	}
}

// meets accepts a connection and opens the one to forward it to. Without an address, it forwards to
// the same connection.
func (w *worker) meets(o order, r *reply) (err error) {
	if w.ends[0], err = accept(w.listener); err != nil {
		return err
	}
	w.ends[1] = w.ends[0]
	if o.At.IsValid() {
		if w.ends[1], err = dial(o.At); err != nil {
			return err
		}
	}
	for _, fd := range w.ends {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return err
		}
	}
	return nil
}

// join makes the kernel forward between the two connections.
func (w *worker) join(o order, r *reply) error {
	sockets, err := ebpf.LoadPinnedMap(o.Dir+"/relayed", nil)
	if err != nil {
		return err
	}
	defer sockets.Close()
	others, err := ebpf.LoadPinnedMap(o.Dir+"/others", nil)
	if err != nil {
		return err
	}
	defer others.Close()
	var ports [2]relayPorts
	for i, fd := range w.ends {
		if ports[i], err = portsOf(fd); err != nil {
			return err
		}
	}
	for i := range ports {
		if err := others.Put(ports[i], ports[1-i]); err != nil {
			return err
		}
	}
	for i, fd := range w.ends {
		if i == 1 && fd == w.ends[0] {
			break
		}
		if err := sockets.Put(ports[i], uint64(fd)); err != nil {
			return fmt.Errorf("hand a socket to the kernel: %w", err)
		}
	}
	return nil
}

// least makes the minimal program take the connection's messages past TCP.
func (w *worker) least(o order, r *reply) error {
	sockets, err := ebpf.LoadPinnedMap(o.Dir+"/talkers", nil)
	if err != nil {
		return err
	}
	defer sockets.Close()
	ports, err := portsOf(w.conn.fd)
	if err != nil {
		return err
	}
	return sockets.Put(ports, uint64(w.conn.fd))
}

// relay forwards between the two connections until both peers have closed their direction.
func (w *worker) relay(o order, r *reply) (err error) {
	one := w.ends[0] == w.ends[1]
	switch o.Way {
	case wayEpoll:
		err = w.relayByEpoll(r, one)
	case wayKernel:
		err = w.watchEnds(r)
	default:
		err = w.relayByLanes(o, r, one)
	}
	if !one {
		err = errors.Join(err, unix.Close(w.ends[1]))
	}
	return errors.Join(err, unix.Close(w.ends[0]))
}

func (w *worker) relayByEpoll(r *reply, one bool) error {
	c, err := w.newCrowd()
	if err != nil {
		return err
	}
	var members [2]*member
	for i, fd := range w.ends {
		if i == 1 && one {
			members[1] = members[0]
			break
		}
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return err
		}
		if members[i], err = c.add(fd); err != nil {
			return err
		}
	}
	members[0].other, members[1].other = members[1], members[0]
	for len(c.conns) > 0 {
		if _, err := c.turn(-1, func(m *member, p []byte) error {
			if one && len(p) == 0 {
				return c.leave(m)
			}
			return c.pass(m, p)
		}); err != nil {
			return errors.Join(err, c.close())
		}
	}
	r.Calls = c.calls
	return c.close()
}

func (w *worker) relayByLanes(o order, r *reply, one bool) error {
	lanes := [2]lane{{from: w.ends[0], to: w.ends[1]}, {from: w.ends[1], to: w.ends[0]}}
	if one {
		return lanes[0].end(r, lanes[0].run(o.Way))
	}
	back := make(chan error, 1)
	go func() {
		err := errors.Join(pinLoop(), pin(o.CPU))
		if err == nil {
			err = lanes[1].run(o.Way)
		}
		back <- err
	}()
	err := lanes[0].run(o.Way)
	return errors.Join(lanes[0].end(r, err), lanes[1].end(&reply{}, <-back), lanes[1].end(r, nil))
}

// end adds the resource usage of a lane to the reply.
func (l *lane) end(r *reply, err error) error {
	r.Calls += l.calls
	r.lanes.CPU += l.CPU
	r.lanes.Waits += l.Waits
	return err
}

// watchEnds does what is left for a process: it passes on that one end has closed its direction.
func (w *worker) watchEnds(r *reply) error {
	var ended [2]bool
	for !ended[0] || !ended[1] {
		var polled []unix.PollFd
		for i, fd := range w.ends {
			events := int16(unix.POLLRDHUP)
			if ended[i] {
				fd = -1
			}
			polled = append(polled, unix.PollFd{Fd: int32(fd), Events: events})
		}
		if _, err := call(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&polled[0])), 2, 0, 0, 0, 0); err != nil {
			return err
		}
		r.Calls++
		for i := range polled {
			switch {
			case polled[i].Revents == 0:
			case polled[i].Revents&(unix.POLLERR|unix.POLLHUP) != 0 && polled[1-i].Revents == 0:
				return nil // reset, so both are closed
			default:
				ended[i] = true
				r.Calls++
				if err := unix.Shutdown(w.ends[1-i], unix.SHUT_WR); err != nil && !errors.Is(err, unix.ENOTCONN) {
					return err
				}
			}
		}
	}
	return nil
}
