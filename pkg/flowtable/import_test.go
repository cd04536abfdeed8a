package flowtable

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/netfilter"
	"fairlead.io/fairlead/test/rig"
)

// record adds connections to netfilter's records.
func record(list []netfilter.Connection) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table inet t { chain out { type filter hook output priority 0; ct state established accept; }; }")
	if err := cmd.Run(); err != nil {
		return err
	}
	first, err := net.Dial("udp", "127.0.0.1:9") // track a new connection, so that there is a table to add to
	if err != nil {
		return err
	}
	if _, err := first.Write([]byte("one")); err != nil {
		return errors.Join(err, first.Close())
	}
	w, err := netfilter.NewWriter()
	if err != nil {
		return errors.Join(err, first.Close())
	}
	defer w.Close()
	for _, c := range list {
		err = errors.Join(err, w.Add(c))
	}
	return errors.Join(err, first.Close())
}

// If there is not enough room, TCP connections come first, then UDP flows that last. take returns
// how many found no room. Connections to no known frontend take none.
func TestTake(t *testing.T) {
	m, _ := newPinned(t)
	to := NewImporter(slog.Default(), &sync.Mutex{}, func() *maps.Maps { return m })
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "nft is missing: install nftables")
	}
	of := func(port uint16, proto uint8, lasting bool) netfilter.Connection {
		client := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), port)
		return netfilter.Connection{
			Client: client, Dialed: netip.MustParseAddrPort("192.0.2.1:30001"), Seen: client, Server: netip.MustParseAddrPort("10.1.0.2:8080"),
			Proto: proto, Answered: true, Lasting: lasting,
		}
	}
	tcp, stream, answered := of(1, unix.IPPROTO_TCP, true), of(2, unix.IPPROTO_UDP, true), of(3, unix.IPPROTO_UDP, false)
	other := of(4, unix.IPPROTO_TCP, true)
	other.Dialed = netip.MustParseAddrPort("192.0.2.1:30002")
	known := Frontends{}
	for _, proto := range []model.Protocol{model.TCP, model.UDP} {
		known[maps.KeyOf(netip.IPv4Unspecified(), 30001, proto)] = struct{}{}
	}
	err := rig.NewNetns(t, "node").Do(func() error {
		if err := record([]netfilter.Connection{answered, stream, other, tcp}); err != nil {
			return err
		}
		records, err := netfilter.Open()
		if err != nil {
			return err
		}
		defer records.Close()
		for room, want := range [][]netfilter.Connection{nil, {tcp}, {tcp, stream}, {tcp, stream, answered}, {tcp, stream, answered}} {
			w, err := to.newRowWriter(known)
			if err != nil {
				return err
			}
			w.room = room
			left, err := w.take(records)
			if err != nil || left != max(0, 3-room) {
				t.Errorf("with room for %d: take left out %d, %v", room, left, err)
			}
			if diff := cmp.Diff(want, w.written, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("with room for %d (-want +taken):\n%s", room, diff)
			}
		}
		return takeInside(t, to, records)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// takeInside checks that a connection of the node itself to no frontend of clients outside keeps the
// port that netfilter has given it, and that nothing else is done about it.
func takeInside(t *testing.T, to *Importer, records *netfilter.Records) error {
	t.Helper()
	inside := netfilter.Connection{
		Client: netip.MustParseAddrPort("192.0.2.1:40000"), Dialed: netip.MustParseAddrPort("10.96.0.10:80"),
		Seen: netip.MustParseAddrPort("192.0.2.1:10005"), Server: netip.MustParseAddrPort("10.1.0.2:8080"), Proto: unix.IPPROTO_TCP, Answered: true,
	}
	stack, err := netfilter.NewWriter()
	if err != nil {
		return err
	}
	defer stack.Close()
	w, err := to.newRowWriter(Frontends{})
	if err != nil {
		return err
	}
	if err := stack.Add(inside); err != nil {
		return err
	}
	left, err := w.take(records)
	if err != nil || left != 0 || len(w.written) != 1 {
		t.Errorf("take left out %d and has taken %v, %v", left, w.written, err)
	}
	for flow, want := range map[maps.Flow]bool{flowOf(inside): false, flowSeen(inside): true} {
		row, ok, err := maps.LookupFlow(to.maps().Ct, flow)
		if err != nil || ok != want || ok && !isOfStack(flow, &row) {
			t.Errorf("a row of %+v: %t, %+v, %v", flow, ok, row, err)
		}
	}
	return nil
}
