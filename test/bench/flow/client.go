package flow

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clientReport is what a client reports.
type clientReport struct {
	Operations uint64
	Took       time.Duration
	Times      Times
	CPU        time.Duration
}

// worker is one connection of a client.
type worker struct {
	order
	fd      int
	bell    int // only for Send
	to      sockaddr
	buffer  []byte
	times   *histogram
	took    time.Duration // for Send and Associate, the timed parts only
	epoch   time.Time
	started time.Duration // since the epoch, like ended
	ended   time.Duration
}

// runOrder executes the order and reports.
func runOrder(o order) error {
	// All threads wait for each other twice: until all have warmed up, and until the CPU time is
	// read.
	var warm sync.WaitGroup
	begin := make(chan struct{})
	workers, epoch := make([]*worker, o.Parallel), time.Now()
	warm.Add(o.Parallel)
	ended := make(chan error, o.Parallel)
	for i := range workers {
		w := &worker{order: o, to: newSockaddr(o.Address), buffer: make([]byte, o.Size), times: &histogram{}, epoch: epoch, fd: -1}
		workers[i] = w
		go func() {
			isWarm := sync.OnceFunc(warm.Done)
			defer isWarm() // even if prepare fails
			ended <- onThread(o.CPU, func() error {
				err := w.prepare()
				isWarm()
				if err != nil {
					return err
				}
				<-begin
				return w.work()
			})
		}()
	}
	warm.Wait()
	before, err := cpuTime()
	if err != nil {
		return err
	}
	close(begin)
	for range workers {
		err = errors.Join(err, <-ended)
	}
	after, cpuErr := cpuTime()
	if err := errors.Join(err, cpuErr); err != nil {
		return err
	}
	report := reportOf(workers)
	report.CPU = after - before
	return json.NewEncoder(os.Stdout).Encode(report)
}

func reportOf(workers []*worker) clientReport {
	o, all := workers[0].order, &histogram{}
	started, ended, took := workers[0].started, workers[0].ended, time.Duration(0)
	for _, w := range workers {
		all.merge(w.times)
		started, ended = min(started, w.started), max(ended, w.ended)
		took += w.took
	}
	report := clientReport{Operations: uint64(o.Operations) * uint64(len(workers)), Took: ended - started, Times: all.times(1)}
	if o.Kind.batches() {
		report.Took, report.Times = took, all.times(batch)
	}
	return report
}

// opensEach reports whether every operation opens its own socket.
func (w *worker) opensEach() bool { return w.Kind == Connect || w.Kind == Associate }

// prepare connects and warms up.
func (w *worker) prepare() error {
	if !w.opensEach() {
		if err := w.open(); err != nil {
			return fmt.Errorf("connect to %s: %w", w.Address, err)
		}
	}
	if w.Kind == Send {
		var err error
		if w.bell, err = openBell(w.Bell); err != nil {
			return err
		}
	}
	if err := w.repeat(w.WarmUp); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	*w.times, w.took = histogram{}, 0
	return nil
}

func (w *worker) open() error {
	kind := unix.SOCK_STREAM
	if w.Kind.datagrams() {
		kind = unix.SOCK_DGRAM
	}
	var err error
	if w.fd, err = newSocket(familyOf(w.Address), kind); err != nil {
		return err
	}
	if kind == unix.SOCK_DGRAM {
		if err := setPatience(w.fd); err != nil {
			return err
		}
	}
	if !w.Unconnected {
		if err := connect(w.fd, &w.to); err != nil {
			return err
		}
	}
	if kind == unix.SOCK_STREAM {
		return setNoDelay(w.fd)
	}
	return nil
}

// work does the timed operations.
func (w *worker) work() error {
	w.started = time.Since(w.epoch)
	if err := w.repeat(w.Operations); err != nil {
		return fmt.Errorf("do %s: %w", w.Kind, err)
	}
	if w.Kind == Stream {
		if err := w.confirm(); err != nil {
			return fmt.Errorf("end the stream: %w", err)
		}
	}
	w.ended = time.Since(w.epoch)
	if w.opensEach() {
		return nil
	}
	return closeSocket(w.fd)
}

// repeat does the given number of operations.
func (w *worker) repeat(operations int) error {
	switch w.Kind {
	case Stream:
		for range operations {
			if err := writeFull(w.fd, w.buffer); err != nil {
				return err
			}
		}
		return nil
	case Send:
		return w.sendBatches(operations / batch)
	case Associate:
		return w.associateBatches(operations / batch)
	case Connect:
		return w.time(operations, w.connectOnce)
	case Datagram:
		return w.time(operations, w.exchangeDatagram)
	default:
		return w.time(operations, w.exchange)
	}
}

// time does operations back to back, so that one reading of the clock ends one operation and begins
// the next.
func (w *worker) time(operations int, once func() error) error {
	last := time.Since(w.epoch)
	for range operations {
		if err := once(); err != nil {
			return err
		}
		now := time.Since(w.epoch)
		w.times.add(now - last)
		last = now
	}
	return nil
}

func (w *worker) exchange() error {
	if err := writeFull(w.fd, w.buffer); err != nil {
		return err
	}
	return readFull(w.fd, w.buffer)
}

func (w *worker) connectOnce() error {
	if err := w.open(); err != nil {
		return err
	}
	if err := w.exchange(); err != nil {
		return err
	}
	if err := setAbort(w.fd); err != nil {
		return err
	}
	return closeSocket(w.fd)
}

func (w *worker) send() error {
	if w.Unconnected {
		return sendTo(w.fd, w.buffer, &w.to)
	}
	return writeFull(w.fd, w.buffer)
}

func (w *worker) exchangeDatagram() error {
	if err := w.send(); err != nil {
		return err
	}
	n, err := read(w.fd, w.buffer)
	if err == nil && n != len(w.buffer) {
		return fmt.Errorf("an answer has %d bytes, want %d", n, len(w.buffer))
	}
	return explainLoss(err)
}

func (w *worker) sendBatches(batches int) error {
	var answer [1]byte
	for range batches {
		start := time.Since(w.epoch)
		for range batch {
			if err := w.send(); err != nil {
				return err
			}
		}
		took := time.Since(w.epoch) - start
		w.times.add(took)
		w.took += took
		if err := ring(w.bell); err != nil {
			return fmt.Errorf("wake the server: %w", err)
		}
		if _, err := read(w.fd, answer[:]); err != nil {
			return explainLoss(err)
		}
	}
	return nil
}

// associateBatches opens sockets, uses each once, and closes them. The exchange in between is not
// timed.
func (w *worker) associateBatches(batches int) error {
	var fds [batch]int
	for range batches {
		start := time.Since(w.epoch)
		for i := range fds {
			var err error
			if fds[i], err = newSocket(familyOf(w.Address), unix.SOCK_DGRAM); err != nil {
				return err
			}
			if err := connect(fds[i], &w.to); err != nil {
				return err
			}
		}
		took := time.Since(w.epoch) - start
		for _, w.fd = range fds {
			if err := setPatience(w.fd); err != nil {
				return err
			}
			if err := w.exchangeDatagram(); err != nil {
				return err
			}
		}
		start = time.Since(w.epoch)
		for _, fd := range fds {
			if err := closeSocket(fd); err != nil {
				return err
			}
		}
		took += time.Since(w.epoch) - start
		w.times.add(took)
		w.took += took
	}
	return nil
}

// setPatience makes a missing datagram an error.
func setPatience(fd int) error {
	limit := unix.NsecToTimeval(int64(patience))
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
}

func explainLoss(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("no answer within %s: a datagram got lost", patience)
	}
	return err
}

// confirm waits until the server has read everything, and compares the counts.
func (w *worker) confirm() error {
	if err := unix.Shutdown(w.fd, unix.SHUT_WR); err != nil {
		return err
	}
	var count [8]byte
	if err := readFull(w.fd, count[:]); err != nil {
		return fmt.Errorf("read the server's count: %w", err)
	}
	sent := uint64(w.WarmUp+w.Operations) * uint64(w.Size)
	if have := binary.BigEndian.Uint64(count[:]); have != sent {
		return fmt.Errorf("the server read %d bytes of %d", have, sent)
	}
	return nil
}
