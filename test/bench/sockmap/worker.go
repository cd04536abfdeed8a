package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/rig"
)

// funcs returns the functions that the benchmark runs in separate processes.
func funcs() rig.Funcs {
	return rig.Funcs{workerName: workerMain}
}

const workerName = "worker"

// order is a line that a worker reads. The worker executes it and answers with a line.
type order struct {
	Do    string // a method of worker
	At    netip.AddrPort
	CPU   int
	Way   string
	Dir   string // folder of the pinned maps
	Path  string // path of a Unix socket, in place of an address
	Size  int    // bytes of a message
	Count int    // number of messages or connections
}

// reply is the result of an order.
type reply struct {
	Error         string
	At            netip.AddrPort // address of a listener, or of an end of a connection
	Done          uint64         // number of messages or connections
	Bytes         uint64         // bytes read
	End           string         // how reading ended
	Took          time.Duration
	Calls         uint64  // system calls of a proxy
	Median, Worst float64 // ns, of the timed operations; Worst is the 99th percentile
	usage
	lanes usage // usage of the lanes' threads, which is all that such a proxy uses
}

// worker is one end of a single connection at a time.
type worker struct {
	listener int
	nearby   int // listener for Unix sockets
	conn     *conn
	crowd    *crowd
	ends     [2]int // the two connections of a proxy
	buffer   []byte
	times    []float64
	epoch    time.Time
}

// bare reads and writes without Go's poller.
type bare int

func (b bare) Read(p []byte) (int, error) {
	n, err := read(int(b), p)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (b bare) Write(p []byte) (int, error) { return write(int(b), p) }

func workerMain([]string) int {
	if err := pinLoop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := &worker{buffer: make([]byte, 1<<20), times: make([]float64, 0, 1<<16), epoch: time.Now()}
	out := json.NewEncoder(bare(1))
	for in := bufio.NewScanner(bare(0)); in.Scan(); {
		var o order
		r, err := reply{}, json.Unmarshal(in.Bytes(), &o)
		if err == nil {
			r, err = w.do(o)
		}
		if err != nil {
			r.Error = fmt.Sprintf("%s: %v", o.Do, err)
		}
		if err := out.Encode(r); err != nil {
			return 1
		}
	}
	return 0
}

// do executes an order on its CPU, and reports what that took.
func (w *worker) do(o order) (r reply, err error) {
	steps := map[string]func(order, *reply) error{
		"listen": w.listen, "accept": w.accept, "dial": w.dial, "ask": w.ask, "answer": w.answer, "pour": w.pour, "sink": w.sink,
		"mingle": w.mingle, "fetch": w.fetch, "supply": w.supply, "visit": w.visit, "host": w.host, "close": w.close,
		"entertain": w.entertain, "gather": w.gather, "burst": w.burst, "scatter": w.scatter, "forward": w.forward,
		"least": w.least, "meet": w.meets, "join": w.join, "relay": w.relay, "hoard": w.hoard, "drain": w.drain, "reset": w.reset, "finish": w.finish,
	}
	step := steps[o.Do]
	if step == nil {
		return r, errors.New("unknown order")
	}
	if err := pin(o.CPU); err != nil {
		return r, err
	}
	before, err := usageNow()
	if err != nil {
		return r, err
	}
	got := w.got()
	began := time.Since(w.epoch)
	w.times = w.times[:0]
	if err := step(o, &r); err != nil {
		return r, err
	}
	if r.Took == 0 {
		r.Took = time.Since(w.epoch) - began
	}
	after, err := usageNow()
	r.CPU, r.Waits = after.CPU-before.CPU, after.Waits-before.Waits
	if r.lanes.CPU > 0 {
		r.usage = r.lanes
	}
	if r.Bytes == 0 {
		r.Bytes = w.got() - got
	}
	r.Median, r.Worst = quantiles(w.times)
	return r, err
}

func (w *worker) got() uint64 {
	if w.conn == nil {
		return 0
	}
	return w.conn.got
}

// quantiles returns the median and the 99th percentile.
func quantiles(times []float64) (median, worst float64) {
	slices.Sort(times)
	return round.Quantile(times, 0.5), round.Quantile(times, 0.99)
}

func (w *worker) listen(o order, r *reply) (err error) {
	if o.Path != "" {
		w.nearby, err = listenUnix(o.Path)
		return err
	}
	w.listener, r.At, err = listen(o.At)
	return err
}

func (w *worker) accept(o order, r *reply) error {
	listener := w.listener
	if o.Path != "" {
		listener = w.nearby
	}
	fd, err := accept(listener)
	if err != nil {
		return err
	}
	return w.take(fd, o, r)
}

func (w *worker) dial(o order, r *reply) error {
	connect := func() (int, error) { return dial(o.At) }
	if o.Path != "" {
		connect = func() (int, error) { return dialUnix(o.Path) }
	}
	fd, err := connect()
	if err != nil {
		return err
	}
	return w.take(fd, o, r)
}

func (w *worker) take(fd int, o order, r *reply) (err error) {
	if w.conn, err = newConn(fd, o.Way); err != nil || o.Path != "" {
		return err
	}
	r.At, err = localOf(fd)
	return err
}

func (w *worker) close(order, *reply) error {
	c := w.conn
	w.conn = nil
	return c.end()
}

// ask sends requests and reads the answers, which have the same size. One reading of the clock ends
// a request and begins the next.
func (w *worker) ask(o order, r *reply) error {
	message := w.buffer[:o.Size]
	last := time.Since(w.epoch)
	for range o.Count {
		if err := w.conn.say(message); err != nil {
			return err
		}
		if err := w.conn.fill(message); err != nil {
			return err
		}
		now := time.Since(w.epoch)
		w.times = append(w.times, float64(now-last))
		last = now
		r.Done++
	}
	return nil
}

func (w *worker) answer(o order, r *reply) error {
	message := w.buffer[:o.Size]
	for range o.Count {
		if err := w.conn.fill(message); err != nil {
			return err
		}
		if err := w.conn.say(message); err != nil {
			return err
		}
		r.Done++
	}
	return nil
}

// pour sends the messages, and waits until the other end reports that it has all of them.
func (w *worker) pour(o order, r *reply) error {
	message := w.buffer[:o.Size]
	for range o.Count {
		if err := w.conn.say(message); err != nil {
			return err
		}
		r.Done++
	}
	var count [8]byte
	if err := w.conn.fill(count[:]); err != nil {
		return err
	}
	if have, want := binary.BigEndian.Uint64(count[:]), uint64(o.Count)*uint64(o.Size); have != want {
		return fmt.Errorf("the other end received %d bytes of %d", have, want)
	}
	return nil
}

// inFlight is how many bytes each end of a mingle is ahead of what it has read, which any socket's
// buffers take.
const inFlight = 16 << 10

// mingle sends messages and reads as many from the other end, which does the same at the same time:
// neither waits for an answer.
func (w *worker) mingle(o order, r *reply) error {
	message := w.buffer[:o.Size]
	ahead := min(max(inFlight/o.Size, 1), 32)
	for i := range o.Count + ahead {
		if i < o.Count {
			if err := w.conn.say(message); err != nil {
				return err
			}
		}
		if i >= ahead {
			if err := w.conn.fill(message); err != nil {
				return err
			}
			r.Done++
		}
	}
	return nil
}

// pieces is how many messages answer a fetch, as rows do a query.
const pieces = 64

// fetch sends messages, and reads the pieces of the answer to each before it sends the next.
func (w *worker) fetch(o order, r *reply) error {
	message := w.buffer[:o.Size]
	for range o.Count {
		if err := w.conn.say(message); err != nil {
			return err
		}
		for range pieces {
			if err := w.conn.fill(message); err != nil {
				return err
			}
		}
		r.Done++
	}
	return nil
}

func (w *worker) supply(o order, r *reply) error {
	message := w.buffer[:o.Size]
	for range o.Count {
		if err := w.conn.fill(message); err != nil {
			return err
		}
		for range pieces {
			if err := w.conn.say(message); err != nil {
				return err
			}
		}
		r.Done++
	}
	return nil
}

// sinkSize is the maximum that a sink reads at a time.
const sinkSize = 128 << 10

func (w *worker) sink(o order, r *reply) error {
	for left := o.Count * o.Size; left > 0; {
		n, err := w.conn.some(w.buffer[:min(sinkSize, left)])
		if err != nil {
			return err
		}
		left -= n
		r.Bytes += uint64(n)
	}
	r.Done = r.Bytes / uint64(o.Size)
	return w.conn.say(binary.BigEndian.AppendUint64(nil, r.Bytes))
}

// visit repeatedly connects, sends one request and closes.
func (w *worker) visit(o order, r *reply) error {
	message := w.buffer[:o.Size]
	last := time.Since(w.epoch)
	for range o.Count {
		fd, err := dial(o.At)
		if err != nil {
			return err
		}
		c := conn{fd: fd}
		if err := c.say(message); err != nil {
			return err
		}
		if err := c.fill(message); err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
		now := time.Since(w.epoch)
		w.times = append(w.times, float64(now-last))
		last = now
		r.Done++
	}
	return nil
}

// host serves such connections.
func (w *worker) host(o order, r *reply) error {
	message := w.buffer[:o.Size]
	for range o.Count {
		fd, err := accept(w.listener)
		if err != nil {
			return err
		}
		c := conn{fd: fd}
		if err := c.fill(message); err != nil {
			return err
		}
		if err := c.say(message); err != nil {
			return err
		}
		if n, err := read(fd, message); err != nil || n > 0 {
			return fmt.Errorf("%d bytes after the request: %w", n, err)
		}
		r.Bytes += c.got
		if err := unix.Close(fd); err != nil {
			return err
		}
		r.Done++
	}
	return nil
}
