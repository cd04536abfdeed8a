package sockmap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/sockmap"
)

// TestClosing checks that connections end past TCP as they do by TCP, whichever end begins: nothing that was sent before
// is lost, and each end is told.
func TestClosing(t *testing.T) {
	for _, how := range []string{"finish", "last", "abort", "cork"} {
		for first := range 2 {
			t.Run(fmt.Sprintf("%s,first=%d", how, first), func(t *testing.T) {
				w := newTwoPods(t, sockmap.DefaultLimits())
				w.dial(server4).ok("%s %d", how, first) // too short to bypass TCP
				if tallies := w.tallies(); tallies.Redirected.Count > 0 {
					t.Errorf("something bypassed TCP: %+v", tallies)
				}
				_, c := short(t, sockmap.DefaultLimits())
				before := c.w.tallies().Redirected.Count
				c.ok("%s %d", how, first)
				if c.w.tallies().Redirected.Count == before {
					t.Error("nothing bypassed TCP")
				}
			})
		}
	}
}

// TestClosingUnread checks that who closes with something unread tells the other end: by TCP with a reset, and past TCP
// with the end of the connection.
func TestClosingUnread(t *testing.T) {
	for first := range 2 {
		t.Run(fmt.Sprint("first=", first), func(t *testing.T) {
			newTwoPods(t, sockmap.DefaultLimits()).dial(server4).ok("unread %d 0", first)
			_, c := short(t, sockmap.DefaultLimits())
			c.ok("unread %d 1", first)
		})
	}
}

func (e ends) sides(first int) (a, b *net.TCPConn) {
	if first == 0 {
		return e.client, e.server
	}
	return e.server, e.client
}

// heardEnd returns an error unless the other end has closed its direction, or with want has broken the connection.
func heardEnd(conn *net.TCPConn, want error) error {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, want) {
		return fmt.Errorf("it reads %d bytes, and %v instead of %v", n, err, want)
	}
	return nil
}

// finish has one end shut down its direction, and the other say more before it does the same.
func (e ends) finish(first int) error {
	a, b := e.sides(first)
	if _, err := a.Write(pattern(1, 3000)); err != nil {
		return err
	}
	return errors.Join(a.CloseWrite(), hear(b, pattern(1, 3000)), heardEnd(b, io.EOF), say(b, a, 2, 3000), b.CloseWrite(), heardEnd(a, io.EOF))
}

// last has one end close after its last message, and wait until the other has it.
func (e ends) last(first int) error {
	a, b := e.sides(first)
	if err := a.SetLinger(int(patience.Seconds())); err != nil {
		return err
	}
	if _, err := a.Write(pattern(3, 30_000)); err != nil {
		return err
	}
	began := time.Now()
	if err := a.Close(); err != nil || time.Since(began) > patience/2 {
		return fmt.Errorf("to close took %v: %v", time.Since(began), err)
	}
	return errors.Join(hear(b, pattern(3, 30_000)), heardEnd(b, io.EOF))
}

// abort has one end reset the connection after its last message.
func (e ends) abort(first int) error {
	a, b := e.sides(first)
	if _, err := a.Write(pattern(4, 100)); err != nil {
		return err
	}
	return errors.Join(a.SetLinger(0), a.Close(), hear(b, pattern(4, 100)), heardEnd(b, unix.ECONNRESET))
}

// unread has one end close with something unread, which has gone past TCP or not.
func (e ends) unread(first int, past bool) error {
	a, b := e.sides(first)
	if _, err := b.Write(pattern(5, 100)); err != nil {
		return err
	}
	want := error(unix.ECONNRESET)
	if past {
		want = io.EOF
	}
	return errors.Join(e.come(a), a.Close(), heardEnd(b, want))
}

// come waits until there is something for one end to read.
func (e ends) come(end *net.TCPConn) error {
	raw, err := end.SyscallConn()
	if err != nil {
		return err
	}
	return control(func(fd int) error {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
			switch {
			case errors.Is(err, unix.EINTR):
			case err == nil && n == 0:
				return os.ErrDeadlineExceeded
			default:
				return err
			}
		}
	})("", "", raw)
}

// cork has one end hold back messages and then let them go. Past TCP they arrive at once.
func (e ends) cork(first int) error {
	a, b := e.sides(first)
	raw, err := a.SyscallConn()
	if err != nil {
		return err
	}
	set := func(on int) error {
		return control(func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, on) })("", "", raw)
	}
	if err := set(1); err != nil {
		return err
	}
	for i := range 5 {
		if _, err := a.Write(pattern(i, 100)); err != nil {
			return err
		}
	}
	if err := set(0); err != nil {
		return err
	}
	for i := range 5 {
		if err := hear(b, pattern(i, 100)); err != nil {
			return err
		}
	}
	return say(b, a, 7, 100)
}

// TestSameAddresses checks that connections do not mix that have the same addresses and ports in two pods, as those
// between applications and their sidecars may.
func TestSameAddresses(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	var both []ends
	for _, pod := range w.pods {
		var listener net.Listener
		w.Must(pod.Do(func() (err error) {
			config := net.ListenConfig{}
			config.SetMultipathTCP(false)
			listener, err = config.Listen(context.Background(), "tcp", "127.0.0.1:5000")
			return err
		}))
		dialer := &net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5001}}
		e, err := connectBy(dialer, pod, listener, "127.0.0.1:5000")
		w.Must(err)
		t.Cleanup(func() { e.client.Close(); e.server.Close(); listener.Close() })
		both = append(both, e)
	}
	ask := func(times int) {
		for i := range times {
			for pod, e := range both { // at once, and each pod says something else
				_, err := e.client.Write(pattern(i+100*pod, 100))
				w.Must(err)
			}
			for pod, e := range both {
				w.Must(hear(e.server, pattern(i+100*pod, 100)))
				w.Must(say(e.server, e.client, i+200*pod, 100))
			}
		}
	}
	w.Until("both to bypass TCP", func() bool {
		ask(10)
		list := w.pairs()
		return len(list) == 2 && list[0].State == "accelerated" && list[1].State == "accelerated"
	})
	before := w.pairs()
	ask(1000)
	after := w.pairs()
	if before[0].Client != before[1].Client || before[0].Server != before[1].Server || before[0].ClientNetns == before[1].ClientNetns {
		t.Errorf("they are not alike: %+v", before)
	}
	if len(after) != 2 {
		t.Errorf("there are %+v", after)
	}
	for _, p := range after {
		if p.Redirected[0] < 99_000 || p.Redirected[1] < 99_000 {
			t.Errorf("too little went past TCP: %+v", p)
		}
	}
}
