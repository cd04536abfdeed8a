package netfilter

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/rig"
)

// tracking is a network namespace whose connections netfilter tracks, as one of its rules asks for that.
func tracking(t *testing.T) *rig.Netns {
	t.Helper()
	rig.Root(t)
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "there is no nft, of Debian's nftables")
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

// newWriter sees to it that there is a first connection.
func newWriter(t *testing.T, n *rig.Netns) (w *Writer) {
	t.Helper()
	in(t, n, func() error {
		if w, err := NewWriter(); w != nil || err != nil {
			t.Errorf("with no connection: %v, %v; want none", w, err)
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
		t.Fatal("netfilter tracks nothing")
	}
	t.Cleanup(w.Close)
	return w
}

// added adds connections and returns what the kernel then says that it translates.
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
	both := Connection{Client: at("192.0.2.9:40000"), Dialled: at("192.0.2.1:30001"), Seen: at("192.0.2.1:11730"), Server: at("10.1.0.2:8080")}
	server := Connection{
		Client: at("[2001:db8::9]:40000"), Dialled: at("[2001:db8::1]:30001"), Seen: at("[2001:db8::9]:40000"), Server: at("[fd00::2]:8080"),
	}
	// Netfilter has seen the packets of this one translated, as a connection of its own.
	passed := Connection{Client: at("192.0.2.9:40001"), Dialled: at("192.0.2.1:30001"), Seen: at("192.0.2.9:40001"), Server: at("10.1.0.2:8080")}
	if err := w.Add(Connection{Client: passed.Seen, Dialled: passed.Server, Seen: passed.Seen, Server: passed.Server}); err != nil {
		t.Fatal(err)
	}
	// And the client's port had a connection with another server before.
	if err := w.Add(Connection{Client: both.Client, Dialled: both.Dialled, Seen: both.Seen, Server: at("10.1.0.3:8080")}); err != nil {
		t.Fatal(err)
	}
	want := map[Connection]bool{both: true, server: true, passed: true}
	if diff := cmp.Diff(want, added(t, n, w, both, server, passed), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	// One that is there, and one that the server takes for that.
	other := Connection{Client: at("192.0.2.8:40000"), Dialled: both.Dialled, Seen: both.Seen, Server: both.Server}
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
