package sockmap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// TestOfBefore checks that connections made before any could bypass TCP do so later, even if
// nothing watched them.
func TestOfBefore(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	w.Must(w.Switch(false))
	w.Must(w.SetRules(nil))
	c := w.dial(server4)
	c.ask(1003, 100)
	w.Let(w.pods[:]...)
	w.Must(w.Switch(true))
	c.ask(20, 100)
	w.Until("admission", func() bool { return w.only().State == "accelerated" })
}

// TestReconnect checks that a socket that leaves its connection and opens another has nothing more
// to do with the first connection's other end.
func TestReconnect(t *testing.T) {
	for _, asked := range []int{6, 40} {
		t.Run(fmt.Sprint("after ", asked), func(t *testing.T) {
			w := newTwoPods(t, sockmap.DefaultLimits())
			c := w.dial(server4)
			c.ask(asked, 100)
			if asked > 20 {
				w.Until("it to go past TCP", func() bool { c.ask(1, 100); return w.only().State == "accelerated" })
			}
			first := w.only()
			c.ok("reconnect")
			c.ask(2, 1000)
			defer func() { t.Logf("%+v", w.pairs()) }()
			w.Until("it to go past TCP anew", func() bool {
				c.ask(10, 100)
				list := w.pairs()
				return len(list) == 1 && list[0].Server != first.Server && list[0].State == "accelerated"
			})
			c.ask(10, 1000)
			c.ok("close")
			w.Until("nothing to be known", w.isForgotten)
		})
	}
}

// isForgotten reports whether nothing is left of any connection, including those of which only one
// end was known.
func (w *twoPods) isForgotten() bool {
	w.T.Helper()
	halves, err := filepath.Glob(filepath.Join(sockmap.Dir(w.BPFFS), "*", "halves"))
	w.Must(err)
	if len(halves) == 0 {
		w.T.Fatal("there are no maps")
	}
	count := len(w.pairs())
	for _, path := range halves {
		m, err := ebpf.LoadPinnedMap(path, nil)
		w.Must(err)
		defer m.Close()
		each := m.Iterate()
		for key, value := []byte{}, []byte{}; each.Next(&key, &value); {
			count++
		}
		w.Must(each.Err())
	}
	return count == 0
}

// TestAlone checks that only one end is known of a connection whose other end may not bypass TCP,
// until the connection ends.
func TestAlone(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	w.Must(w.SetRules(map[sockmap.Endpoint]sockmap.Rules{{Netns: w.Cookie(w.pods[0])}: {From: 1}}))
	c := w.dial(server4)
	for range 40 { // long enough for the row to be examined again
		c.ask(5, 100)
		if len(w.pairs()) != 0 || w.isForgotten() {
			t.Fatalf("%+v", w.pairs())
		}
	}
	c.ok("close")
	w.Until("nothing to be known", w.isForgotten)

	c = w.dial(server4)
	c.ask(10, 100)
	if w.isForgotten() {
		t.Fatal("nothing is known")
	}
	w.Let(w.pods[:]...) // once the other end may bypass TCP, it is found too
	c.ask(100, 100)
	w.Until("admission", func() bool { return w.only().State == "accelerated" })
	c.ok("close")
	w.Until("nothing to be known", w.isForgotten)
}

// TestFound checks that conversations are found however many segments a message has, and whatever
// was sent before.
func TestFound(t *testing.T) {
	for _, c := range []struct{ first, size int }{{0, 100}, {1, 100}, {0, 2000}, {1, 2000}, {1, 5000}, {2, 5000}} {
		t.Run(fmt.Sprintf("%d and messages of %d", c.first, c.size), func(t *testing.T) {
			w := newTwoPods(t, sockmap.DefaultLimits())
			talk := w.dial(server4)
			talk.ask(c.first, 100)
			w.Until("them to be found", func() bool { talk.ask(10, c.size); return len(w.pairs()) == 1 })
		})
	}
}

// TestRetireInterrupted checks that an agent does not adopt what an interrupted retirement left:
// its programs might record connections that nothing forgets.
func TestRetireInterrupted(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	w.Stop()
	pins, err := filepath.Glob(filepath.Join(sockmap.Dir(w.BPFFS), "*", bpf.SockmapProgSockmapForget))
	w.Must(err)
	if len(pins) != 1 {
		t.Fatalf("there are %v", pins)
	}
	w.Must(os.Remove(pins[0]))
	w.Start()
	w.Let(w.pods[:]...)
	w.Must(w.Switch(true))
	c := w.dial(server4)
	c.shorten()
	c.ok("close")
	w.Until("nothing to be known", w.isForgotten)
}

// reconnect makes the client's socket leave its connection and open another.
func (e ends) reconnect(to *rig.Netns, addr string) (ends, error) {
	listener, err := listen(to, addr)
	if err != nil {
		return e, err
	}
	defer listener.Close()
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	raw, err := e.client.SyscallConn()
	if err != nil {
		return e, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = connectAnew(int(fd), at) })
	if err := errors.Join(err, failed); err != nil {
		return e, err
	}
	if err := e.server.Close(); err != nil {
		return e, err
	}
	server, err := listener.Accept()
	if err != nil {
		return e, err
	}
	return ends{e.client, server.(*net.TCPConn)}, nil
}

// connectAnew makes a socket leave its connection, and waits until it has a new one.
func connectAnew(fd int, at netip.AddrPort) error {
	nobody := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&nobody)), unsafe.Sizeof(nobody))
	if errno != 0 {
		return errno
	}
	err := unix.Connect(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	if errors.Is(err, unix.EINPROGRESS) {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(patience.Milliseconds()))
	}
	return err
}
