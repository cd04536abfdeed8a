package sockmap

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/sockmap"
)

// edgeReader reads a socket by edge-triggered epoll. If it rests, it waits to be told of more after a read that
// returned less than it asked for, as a reader may with TCP. Else it looks again until nothing is left.
type edgeReader struct {
	fd, epoll int
	call      func(fd int, p []byte) (int, error)
	rests     bool
	notified  bool
	ended     bool // no more will come, which is told once
}

// newEdgeReader returns a reader of a socket, which needs closing.
func newEdgeReader(fd int, rests bool) (*edgeReader, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	r := &edgeReader{fd: fd, epoll: epoll, call: unix.Read, rests: rests}
	event := &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, event); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *edgeReader) close() error { return unix.Close(r.epoll) }

func (r *edgeReader) wait() error {
	events := make([]unix.EpollEvent, 1)
	for !r.notified {
		n, err := unix.EpollWait(r.epoll, events, int(patience.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err == nil && n == 0 {
			return fmt.Errorf("nothing tells the reader of more: %w", os.ErrDeadlineExceeded)
		}
		r.notified = n > 0
		r.ended = r.ended || n > 0 && events[0].Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	}
	return nil
}

// readSome reads once there is something.
func (r *edgeReader) readSome(p []byte) (int, error) {
	for {
		if err := r.wait(); err != nil {
			return 0, err
		}
		n, err := r.call(r.fd, p)
		if errors.Is(err, unix.EAGAIN) {
			r.notified = false
			continue
		}
		r.notified = !r.rests || n == len(p) || r.ended
		return result(n, err)
	}
}

// read reads as many bytes as there should be, in pieces as large as the room for them.
func (r *edgeReader) read(want, room int) (got []byte, err error) {
	for piece := make([]byte, room); len(got) < want; {
		n, err := r.readSome(piece)
		if err != nil {
			return got, err
		}
		got = append(got, piece[:n]...)
	}
	return got, nil
}

// rawPair connects two sockets that the Go runtime does not know, which has an edge-triggered epoll of its own. The
// client, when it reads, waits by poll.
func (w *twoPods) rawPair() (client, server int) {
	w.T.Helper()
	at := unix.SockaddrInet4{Addr: netip.MustParseAddr(server4).As4()}
	listening := -1
	w.Must(w.pods[1].Do(func() (err error) {
		if listening, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(listening, &at), unix.Listen(listening, 1))
	}))
	defer unix.Close(listening)
	bound, err := unix.Getsockname(listening)
	w.Must(err)
	w.Must(w.pods[0].Do(func() (err error) {
		if client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Connect(client, bound), unix.SetNonblock(client, true))
	}))
	w.T.Cleanup(func() { unix.Close(client) })
	server, _, err = unix.Accept4(listening, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	w.Must(err)
	w.T.Cleanup(func() { unix.Close(server) })
	return client, server
}

// edge returns an edge-triggered reader of a socket.
func (w *twoPods) edge(fd int, rests bool) *edgeReader {
	w.T.Helper()
	r, err := newEdgeReader(fd, rests)
	w.Must(err)
	w.T.Cleanup(func() { _ = r.close() })
	return r
}

// converse has a client send requests, and the reader answer them. If the reader looks again until nothing is left, it
// does so before the next request.
func (w *twoPods) converse(client int, r *edgeReader, times int) {
	w.T.Helper()
	for i := range times {
		message := pattern(i, 100)
		_, err := unix.Write(client, message)
		w.Must(err)
		got, err := r.read(len(message), 4096)
		w.Must(err)
		if !r.rests {
			if _, err := r.call(r.fd, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
				w.T.Fatalf("something comes after request %d: %v", i, err)
			}
			r.notified = false
		}
		_, err = unix.Write(r.fd, got)
		w.Must(err)
		answer, err := readAll(client, len(message))
		w.Must(err)
		if !bytes.Equal(answer, message) {
			w.T.Fatalf("request %d was answered with something else", i)
		}
	}
}

// strandEdge has data that goes by TCP arrive behind data that may bypass it, before the reader reads: with one
// event, and then none.
func (w *twoPods) strandEdge(client int, r *edgeReader) {
	w.T.Helper()
	first, second := pattern(1, 100), pattern(2, 200)
	_, err := unix.Write(client, first)
	w.Must(err)
	w.Must(sendMany(client, second)) // a call that never bypasses TCP
	got, err := r.read(300, 4096)
	if err != nil || !bytes.Equal(got, append(first, second...)) {
		w.T.Errorf("%d bytes of 300 arrived, as they were sent: %v, %v", len(got), bytes.Equal(got, append(first, second...)), err)
	}
}

// TestEdge checks that readers by edge-triggered epoll get data past TCP only if they look again until nothing is left,
// by whatever call they read: others would not be told of what comes by TCP behind it.
func TestEdge(t *testing.T) {
	pieces := func(p []byte) [][]byte { return slices.Collect(slices.Chunk(p, max(len(p)/5, 1))) }
	calls := map[string]func(int, []byte) (int, error){
		"read":  unix.Read,
		"readv": func(fd int, p []byte) (int, error) { return unix.Readv(fd, pieces(p)) },
		"recvfrom": func(fd int, p []byte) (int, error) {
			n, _, err := unix.Recvfrom(fd, p, 0)
			return n, err
		},
		"recvmsg": func(fd int, p []byte) (int, error) {
			n, _, _, _, err := unix.RecvmsgBuffers(fd, pieces(p), nil, 0)
			return n, err
		},
	}
	for name, call := range calls {
		for rests, want := range map[bool]string{false: "accelerated ", true: "excluded edge"} {
			t.Run(name+": "+want, func(t *testing.T) {
				w := newTwoPodsAsIs(t, sockmap.DefaultLimits())
				client, server := w.rawPair()
				r := w.edge(server, rests)
				r.call = call
				w.Until("the reader is known", func() bool {
					w.converse(client, r, 20)
					list := w.pairs()
					return len(list) == 1 && list[0].State+" "+list[0].Exclusion == want && (rests || list[0].Redirected[0] > 0)
				})
				if p := w.only(); rests && p.Redirected[0] > 0 {
					t.Errorf("data for the reader has bypassed TCP: %+v", p)
				}
				for range 10 {
					w.strandEdge(client, r)
					w.converse(client, r, 5)
				}
			})
		}
	}
}

// TestEdgeFull checks that a reader by edge-triggered epoll gets no data past TCP while all of its reads return as much as
// it asks for: it may rest after the first that does not.
func TestEdgeFull(t *testing.T) {
	w := newTwoPodsAsIs(t, sockmap.DefaultLimits())
	client, server := w.rawPair()
	r := w.edge(server, true)
	exactly := func(times int) {
		for i := range times {
			_, err := unix.Write(client, pattern(i, 100))
			w.Must(err)
			got, err := r.read(100, 50)
			w.Must(err)
			_, err = unix.Write(server, got)
			w.Must(err)
			_, err = readAll(client, 100)
			w.Must(err)
		}
	}
	w.Until("admission", func() bool {
		exactly(20)
		list := w.pairs()
		return len(list) == 1 && list[0].State == "accelerated"
	})
	exactly(1000)
	if p := w.only(); p.State != "accelerated" || p.Redirected[0] > 0 || p.Redirected[1] == 0 {
		t.Errorf("data for the reader has bypassed TCP, or none from it: %+v", p)
	}
}

// TestEdgeChanges checks that a reader by edge-triggered epoll gets no more data past TCP once it rests, and again when it
// looks again.
func TestEdgeChanges(t *testing.T) {
	w := newTwoPodsAsIs(t, sockmap.DefaultLimits())
	client, server := w.rawPair()
	r := w.edge(server, false)
	bypasses := func() bool {
		before := w.pairs()
		w.converse(client, r, 20)
		after := w.pairs()
		return len(before) == 1 && after[0].Redirected[0] == before[0].Redirected[0]+20*100
	}
	w.Until("data to bypass TCP", bypasses)
	r.rests = true
	w.Until("none to do so", func() bool {
		before := w.only()
		w.converse(client, r, 20)
		return w.only().Redirected[0] == before.Redirected[0]
	})
	w.strandEdge(client, r)
	r.rests = false
	w.Until("data to bypass TCP again", bypasses)
}

// TestEdgeBusy checks that a reader by edge-triggered epoll is not given up that looks again until nothing is left, but
// finds more most of the times: it leaves the map as if the connection were a stream, and comes back.
func TestEdgeBusy(t *testing.T) {
	w := newTwoPodsAsIs(t, sockmap.DefaultLimits())
	client, server := w.rawPair()
	r := w.edge(server, false)
	w.Until("data to bypass TCP", func() bool {
		w.converse(client, r, 20)
		list := w.pairs()
		return len(list) == 1 && list[0].Redirected[0] > 0
	})
	w.Until("the reader to leave", func() bool {
		for i := range 50 {
			_, err := unix.Write(client, pattern(i, 100))
			w.Must(err)
			r.notified = false
			got, err := r.read(100, 4096)
			w.Must(err)
			if i%5 > 0 {
				_, err = unix.Write(client, pattern(i, 100))
				w.Must(err)
				_, err = readAll(server, 100)
				w.Must(err)
			} else if n, err := unix.Read(server, make([]byte, 100)); !errors.Is(err, unix.EAGAIN) {
				t.Fatalf("%d bytes come after request %d: %v, %+v", n, i, err, w.pairs())
			}
			_, err = unix.Write(server, got)
			w.Must(err)
			_, err = readAll(client, 100)
			w.Must(err)
		}
		tallies, err := w.Tallies()
		w.Must(err)
		return tallies.Left == 2
	})
	before := w.only()
	if before.Exclusion != "" {
		t.Errorf("it is given up: %+v", before)
	}
	r.notified = false
	w.Until("data to bypass TCP again", func() bool {
		w.converse(client, r, 20)
		return w.only().Redirected[0] > before.Redirected[0]
	})
}

// TestEdgeNotified checks that a reader by edge-triggered epoll gets no data past TCP that rests, but tries to read whenever
// it is told anything, such as of what it has read already: then it finds nothing, but it would not have looked without.
func TestEdgeNotified(t *testing.T) {
	w := newTwoPodsAsIs(t, sockmap.DefaultLimits())
	client, server := w.rawPair()
	w.Must(unix.SetsockoptInt(client, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	r := w.edge(server, true)
	piece := make([]byte, 4096)
	twice := func(i int) {
		_, err := unix.Write(client, pattern(i, 100))
		w.Must(err)
		r.notified = false
		w.Must(r.wait())
		_, err = unix.Write(client, pattern(i, 100))
		w.Must(err)
		w.Until("both messages to have come", func() bool {
			n, _, err := unix.Recvfrom(server, piece, unix.MSG_PEEK)
			if !errors.Is(err, unix.EAGAIN) {
				w.Must(err)
			}
			list := w.pairs()
			return n == 200 || len(list) == 1 && list[0].Redirected[0] > 0
		})
		_, err = unix.Read(server, piece)
		w.Must(err)
		r.notified = false
		w.Must(r.wait())
		if n, err := unix.Read(server, piece); !errors.Is(err, unix.EAGAIN) {
			t.Fatalf("%d bytes come after request %d: %v, %+v", n, i, err, w.pairs())
		}
		_, err = unix.Write(server, pattern(i, 100))
		w.Must(err)
		_, err = readAll(client, 100)
		w.Must(err)
	}
	w.Until("admission", func() bool {
		twice(0)
		list := w.pairs()
		return len(list) == 1 && list[0].State == "accelerated"
	})
	for i := range 300 {
		twice(i)
	}
	if p := w.only(); p.State != "accelerated" || p.Redirected[0] > 0 || p.Redirected[1] == 0 {
		t.Errorf("data for the reader has bypassed TCP, or none from it: %+v", p)
	}
}

// TestEdgeRoom checks the same of a reader that tries to read when it is told that there is room to send again.
func TestEdgeRoom(t *testing.T) {
	small := func(w *twoPods, client, server int) {
		w.Must(unix.SetsockoptInt(server, unix.SOL_SOCKET, unix.SO_SNDBUF, 32<<10))
		w.Must(unix.SetsockoptInt(client, unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10))
	}
	t.Run("many sends", func(t *testing.T) { fillsRoom(t, 8<<10, small) })
	// The kernel shows the programs no send that follows one for which there was not enough room.
	t.Run("one send", func(t *testing.T) { fillsRoom(t, 1<<20, small) })
	t.Run("unsent", func(t *testing.T) {
		fillsRoom(t, 8<<10, func(w *twoPods, client, server int) {
			w.Must(unix.SetsockoptInt(client, unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10))
			w.Must(w.pods[1].SetSysctl("net/ipv4/tcp_notsent_lowat", "16384"))
		})
	})
}

// fillsRoom has a server answer with as much as there is room for, in sends of a size.
func fillsRoom(t *testing.T, size int, limit func(w *twoPods, client, server int)) {
	limits := sockmap.DefaultLimits()
	limits.Stream = 1 << 20 // or they might leave for streaming
	w := newTwoPodsAsIs(t, limits)
	client, server := w.rawPair()
	limit(w, client, server)
	r := w.edge(server, true)
	piece := make([]byte, size)
	fill := func(i int) {
		_, err := unix.Write(client, pattern(i, 100))
		w.Must(err)
		_, err = r.read(100, size)
		w.Must(err)
		sent := 0
		for {
			n, err := unix.Write(server, piece)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			w.Must(err)
			sent += n
		}
		_, err = readAll(client, sent)
		w.Must(err)
		w.Must(r.wait())
		if n, err := unix.Read(server, piece); !errors.Is(err, unix.EAGAIN) {
			t.Fatalf("%d bytes come after request %d: %v, %+v", n, i, err, w.pairs())
		}
		r.notified = false
	}
	w.Until("admission", func() bool {
		fill(0)
		list := w.pairs()
		return len(list) == 1 && list[0].State == "accelerated"
	})
	for i := range 100 {
		fill(i)
	}
	if p := w.only(); p.State != "accelerated" || p.Redirected[0] > 0 {
		t.Errorf("data for the reader has bypassed TCP: %+v", p)
	}
}

// TestEdgeLate checks that a reader is known that turns to edge-triggered epoll when data bypasses TCP already.
func TestEdgeLate(t *testing.T) {
	w := newTwoPodsAsIs(t, sockmap.DefaultLimits())
	client, server := w.rawPair()
	r := w.edge(server, false)
	w.Must(unix.EpollCtl(r.epoll, unix.EPOLL_CTL_MOD, server, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(server)}))
	w.Until("data to bypass TCP", func() bool {
		w.converse(client, r, 20)
		list := w.pairs()
		return len(list) == 1 && list[0].State == "accelerated" && list[0].Redirected[0] > 0
	})
	r.rests = true
	w.Must(unix.EpollCtl(r.epoll, unix.EPOLL_CTL_MOD, server, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(server)}))
	w.Must(w.Switch(true)) // the agent looks at all sockets
	w.Until("the reader to be known", func() bool {
		w.converse(client, r, 20)
		return w.only().Exclusion == "edge"
	})
	w.strandEdge(client, r)
}
