package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/result"
)

// Tests of a proxy beside its speed: with a reader that does not read, with a peer that closes its
// direction, and with a peer that is gone.

// still is how long a blocked writer waits before it gives up.
const still = 300 * time.Millisecond

// hoard sends until there is no room, or until the given number of messages is sent.
func (w *worker) hoard(o order, r *reply) error {
	message := w.buffer[:o.Size]
	if err := unix.SetNonblock(w.conn.fd, true); err != nil {
		return err
	}
	defer func() { _ = unix.SetNonblock(w.conn.fd, false) }()
	for range o.Count {
		for at := 0; at < o.Size; {
			n, err := write(w.conn.fd, message[at:])
			if errors.Is(err, unix.EAGAIN) {
				room := unix.PollFd{Fd: int32(w.conn.fd), Events: unix.POLLOUT}
				limit := unix.NsecToTimespec(int64(still))
				ready, err := call(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&room)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
				if err != nil || ready == 0 {
					return err
				}
				continue
			}
			if err != nil {
				return err
			}
			at += n
			r.Bytes += uint64(n)
		}
	}
	return nil
}

// drain reads until the other end closes its direction, or until nothing has arrived for a second.
func (w *worker) drain(o order, r *reply) error {
	limit := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(w.conn.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return err
	}
	for {
		n, err := read(w.conn.fd, w.buffer)
		if err != nil {
			r.End = err.Error()
			return nil
		}
		if n == 0 {
			r.End = "end"
			return nil
		}
		r.Bytes += uint64(n)
	}
}

// finish closes the sending direction.
func (w *worker) finish(order, *reply) error { return unix.Shutdown(w.conn.fd, unix.SHUT_WR) }

// reset closes the connection with a reset.
func (w *worker) reset(order, *reply) error {
	if err := unix.SetsockoptLinger(w.conn.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return fmt.Errorf("have it reset: %w", err)
	}
	c := w.conn
	w.conn = nil
	return c.end()
}

// hazards tests every way with peers that misbehave.
func (o *options) hazards(ctx context.Context, report *result.Report, s *twoNodesTwoPods) error {
	const name = "hazards of a pure proxy"
	if !o.wants(name, "") {
		return nil
	}
	a, err := s.apps()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, a.stop)()
	const most = 256 << 20
	tries := max(int(o.effort*20), 2)
	for _, way := range relayWays() {
		row := func(what, metric string, value float64) {
			report.Add(result.Row{Row: name, Case: way.name + ": " + what, Metric: metric, Value: value, Verdict: result.Pass})
		}
		c := &chain{a, way, false}
		unread, lost, err := c.unread(max(int(min(o.effort, 1)*most), 8<<20))
		if err != nil {
			return fmt.Errorf("%s: a peer that does not read: %w", way.name, err)
		}
		row("taken for who does not read", "MiB", float64(unread)/(1<<20))
		row("of it lost", "MiB", float64(lost)/(1<<20))
		short, stuck := 0, 0
		for range tries {
			got, end, err := c.halfClose()
			if err != nil {
				return fmt.Errorf("%s: a peer that closes its direction: %w", way.name, err)
			}
			if got < halfClosed {
				short++
			}
			if end != "end" {
				stuck++
			}
		}
		row("bytes lost before the end, of connections", "%", 100*float64(short)/float64(tries))
		row("no end after the last byte, of connections", "%", 100*float64(stuck)/float64(tries))
		noticed, err := c.broken()
		if err != nil {
			return fmt.Errorf("%s: a peer that is gone: %w", way.name, err)
		}
		row("is told that the other end is gone", "of 1", noticed)
	}
	got, err := (&chain{a, relayWay{wayKernel, wayKernel, false}, false}).early()
	if err != nil {
		return err
	}
	report.Add(result.Row{Row: name, Case: wayKernel + ": bytes of 64 that came before the socket was handed over", Metric: "bytes", Value: float64(got), Verdict: result.Pass})
	return nil
}

// unread makes the client send to a server that does not read.
func (c *chain) unread(most int) (taken, lost uint64, err error) {
	if err := c.open(); err != nil {
		return 0, 0, err
	}
	const size = 64 << 10
	sent, err := c.client.ask(order{Do: "hoard", Count: most / size, Size: size})
	if err != nil {
		return 0, 0, err
	}
	if err := c.server.send(order{Do: "drain"}); err != nil {
		return 0, 0, err
	}
	if _, err := c.client.ask(order{Do: "finish"}); err != nil {
		return 0, 0, err
	}
	var got reply
	if err := c.server.hear(&got); err != nil {
		return 0, 0, err
	}
	_, err = c.close()
	return sent.Bytes, sent.Bytes - got.Bytes, err
}

// halfClosed is the number of bytes sent before a client closes its direction.
const halfClosed = 1 << 20

func (c *chain) halfClose() (got uint64, end string, err error) {
	if err := c.open(); err != nil {
		return 0, "", err
	}
	if err := c.server.send(order{Do: "drain"}); err != nil {
		return 0, "", err
	}
	if _, err := c.client.ask(order{Do: "hoard", Count: halfClosed / (64 << 10), Size: 64 << 10}); err != nil {
		return 0, "", err
	}
	if _, err := c.client.ask(order{Do: "finish"}); err != nil {
		return 0, "", err
	}
	var r reply
	if err := c.server.hear(&r); err != nil {
		return 0, "", err
	}
	_, err = c.close()
	return r.Bytes, r.End, err
}

// broken makes the server reset the connection, and reports whether the client learns of it.
func (c *chain) broken() (noticed float64, err error) {
	if err := c.open(); err != nil {
		return 0, err
	}
	if _, err := c.talk("ask", "answer", job{64, 4}); err != nil {
		return 0, err
	}
	if _, err := c.server.ask(order{Do: "reset"}); err != nil {
		return 0, err
	}
	r, err := c.client.ask(order{Do: "drain"})
	if err != nil {
		return 0, err
	}
	if r.End == "end" || strings.Contains(r.End, "reset") {
		noticed = 1
	}
	if _, err := c.client.ask(order{Do: "close"}); err != nil {
		return noticed, err
	}
	// The proxy may end with an error here, which also tells the client.
	line, err := c.proxy.ReadLine()
	if err == nil && line == "" {
		err = errors.New("the proxy does not reply")
	}
	return noticed, err
}

// early makes the client send before the kernel has been handed the sockets.
func (c *chain) early() (got uint64, err error) {
	if err := c.s.SetRules(nil); err != nil {
		return 0, err
	}
	if err := errors.Join(c.server.send(order{Do: "accept", Way: blocking}), c.proxy.send(order{Do: "meet", At: c.outside})); err != nil {
		return 0, err
	}
	if _, err := c.client.ask(order{Do: "dial", At: c.inside, Way: blocking}); err != nil {
		return 0, err
	}
	if err := errors.Join(c.proxy.hear(&reply{}), c.server.hear(&reply{})); err != nil {
		return 0, err
	}
	if _, err := c.client.ask(order{Do: "hoard", Count: 1, Size: 64}); err != nil {
		return 0, err
	}
	if _, err := c.proxy.ask(order{Do: "join", Dir: c.s.relay.dir}); err != nil {
		return 0, err
	}
	if err := c.proxy.send(order{Do: "relay", Way: wayKernel}); err != nil {
		return 0, err
	}
	r, err := c.server.ask(order{Do: "drain"})
	if err != nil {
		return 0, err
	}
	_, err = c.close()
	return r.Bytes, err
}
