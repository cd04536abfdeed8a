package netfilter

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// tracking returns a network namespace with connection tracking, which a rule in it requires.
func tracking(t *testing.T) *rig.Netns {
	t.Helper()
	rig.Root(t)
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "there is no nft; install nftables")
	}
	n := rig.NewNetns(t, "tracking")
	in(t, n, func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table inet t { chain out { type filter hook output priority 0; ct state established accept; }; }")
		return cmd.Run()
	})
	return n
}

func in(t *testing.T, n *rig.Netns, fn func() error) {
	t.Helper()
	if err := n.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// newWriter returns a Writer, after it has made a first connection so that there is one.
func newWriter(t *testing.T, n *rig.Netns) (w *Writer) {
	t.Helper()
	in(t, n, func() error {
		if w, err := NewWriter(); w != nil || err != nil {
			t.Errorf("NewWriter without a connection: %v, %v; want nil", w, err)
		}
		c, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("one")); err != nil {
			return err
		}
		w, err = NewWriter()
		return err
	})
	if w == nil {
		t.Fatal("NewWriter returned nil though there is a connection")
	}
	t.Cleanup(w.Close)
	return w
}

// added adds connections, and returns those that the kernel then translates.
func added(t *testing.T, n *rig.Netns, w *Writer, list ...Connection) map[Connection]bool {
	t.Helper()
	found := map[Connection]bool{}
	for _, c := range list {
		if err := w.Add(c); err != nil {
			t.Errorf("add %v: %v", c, err)
		}
	}
	in(t, n, func() error {
		records, err := Open()
		if err != nil {
			return err
		}
		defer records.Close()
		return records.Each(func(c Connection) bool {
			found[c] = true
			return true
		})
	})
	return found
}

func TestAdd(t *testing.T) {
	n := tracking(t)
	w := newWriter(t, n)
	at := netip.MustParseAddrPort
	both := Connection{
		Client: at("192.0.2.9:40000"), Dialed: at("192.0.2.1:30001"), Seen: at("192.0.2.1:11730"), Server: at("10.1.0.2:8080"),
		Proto: unix.IPPROTO_TCP, Answered: true, Lasting: true,
	}
	server := Connection{
		Client: at("[2001:db8::9]:40000"), Dialed: at("[2001:db8::1]:30001"), Seen: at("[2001:db8::9]:40000"), Server: at("[fd00::2]:8080"),
		Proto: unix.IPPROTO_TCP, Answered: true, Lasting: true,
	}
	stream, answer := both, server
	stream.Proto, answer.Proto, answer.Lasting = unix.IPPROTO_UDP, unix.IPPROTO_UDP, false
	// Netfilter has seen this connection's translated packets, and tracks them as a connection of
	// their own.
	passed := both
	passed.Client, passed.Seen = at("192.0.2.9:40001"), at("192.0.2.9:40001")
	asPassed := passed
	asPassed.Dialed = passed.Server
	if err := w.Add(asPassed); err != nil {
		t.Fatal(err)
	}
	// The client's port had an earlier connection with another server.
	before := both
	before.Server = at("10.1.0.3:8080")
	if err := w.Add(before); err != nil {
		t.Fatal(err)
	}
	// It has seen a packet of the server first, and masqueraded it.
	begun := both
	begun.Client, begun.Seen = at("192.0.2.9:40002"), at("192.0.2.9:40002")
	if err := w.Add(Connection{Client: begun.Server, Dialed: begun.Seen, Seen: at("192.0.2.1:50000"), Server: begun.Seen, Proto: unix.IPPROTO_TCP}); err != nil {
		t.Fatal(err)
	}
	want := map[Connection]bool{both: true, server: true, passed: true, begun: true, stream: true, answer: true}
	if diff := cmp.Diff(want, added(t, n, w, both, server, passed, begun, stream, answer), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	// Add a connection that exists, and one that the server cannot tell from it.
	other := both
	other.Client = at("192.0.2.8:40000")
	if err := w.Add(both); err != nil {
		t.Error(err)
	}
	if err := w.Add(other); err != ErrTaken {
		t.Errorf("add %v: %v; want %v", other, err, ErrTaken)
	}
	if diff := cmp.Diff(want, added(t, n, w), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	w.room = 0
	if err := w.Add(other); err != ErrFull {
		t.Errorf("with no room: %v; want %v", err, ErrFull)
	}
}

// A record is found by the packets that either side sends, and by no others.
func TestFind(t *testing.T) {
	n := tracking(t)
	w := newWriter(t, n)
	at := netip.MustParseAddrPort
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, c := range []Connection{
			{Client: at("192.0.2.9:40000"), Dialed: at("192.0.2.1:30001"), Seen: at("192.0.2.1:11730"), Server: at("10.1.0.2:8080")},
			{Client: at("[2001:db8::9]:40000"), Dialed: at("[2001:db8::1]:30001"), Seen: at("[2001:db8::9]:40000"), Server: at("[fd00::2]:8080")},
		} {
			c.Proto, c.Answered, c.Lasting = proto, true, true
			if err := w.Add(c); err != nil {
				t.Fatal(err)
			}
			find(t, n, c)
		}
	}
	in(t, n, func() error { // an untranslated connection
		c, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("one")); err != nil {
			return err
		}
		f, err := NewFinder()
		if err != nil {
			return err
		}
		defer f.Close()
		if found, ok, err := f.Find(unix.IPPROTO_UDP, c.LocalAddr().(*net.UDPAddr).AddrPort(), at("127.0.0.1:9")); ok || err != nil {
			t.Errorf("found an untranslated connection: %v, %v", found, err)
		}
		return nil
	})
}

func find(t *testing.T, n *rig.Netns, c Connection) {
	t.Helper()
	in(t, n, func() error {
		f, err := NewFinder()
		if err != nil {
			return err
		}
		defer f.Close()
		for _, by := range []struct {
			from, to netip.AddrPort
			ok       bool
		}{{c.Client, c.Dialed, true}, {c.Server, c.Seen, true}, {c.Seen, c.Server, false}, {c.Dialed, c.Client, false}} {
			got, ok, err := f.Find(c.Proto, by.from, by.to)
			if err != nil || ok != by.ok || ok && got != c {
				t.Errorf("packets from %s to %s: %v, %t, %v; want %t", by.from, by.to, got, ok, err, by.ok)
			}
		}
		if got, ok, err := f.Find(unix.IPPROTO_SCTP, c.Client, c.Dialed); ok || err != nil {
			t.Errorf("found by another protocol: %v, %v", got, err)
		}
		return nil
	})
}

// All connections have ends: translated and not, with ports and without.
func TestEnds(t *testing.T) {
	n := tracking(t)
	w := newWriter(t, n) // one by UDP, within this machine
	at := netip.MustParseAddrPort
	for _, c := range []Connection{
		{Client: at("192.0.2.9:40000"), Dialed: at("192.0.2.1:30001"), Seen: at("192.0.2.1:11730"), Server: at("10.1.0.2:8080")},
		{Client: at("[2001:db8::9]:40000"), Dialed: at("[2001:db8::1]:30001"), Seen: at("[2001:db8::9]:40000"), Server: at("[fd00::2]:8080")},
	} {
		c.Proto, c.Answered, c.Lasting = unix.IPPROTO_TCP, true, true
		if err := w.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]int{}
	in(t, n, func() error {
		echo, err := net.Dial("ip4:icmp", "127.0.0.2")
		if err != nil {
			return err
		}
		defer echo.Close()
		if _, err := echo.Write([]byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}); err != nil {
			return err
		}
		return Ends(func(client, server netip.Addr) { got[client.String()+" "+server.String()]++ })
	})
	want := map[string]int{"127.0.0.1 127.0.0.1": 1, "127.0.0.1 127.0.0.2": 1, "192.0.2.9 10.1.0.2": 1, "2001:db8::9 fd00::2": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
}
