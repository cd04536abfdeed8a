package podnet

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// Who sends to a pod that is kept to a rate may have no more on the way than what the pod's row says, and at least two segments; as much as
// the pod has room for if it says nothing.
func TestSendersHeld(t *testing.T) {
	rig.Root(t)
	const (
		rate = 200e3
		all  = rate / 5
		unit = 2 << 10 // in which a pod may say what it has room for
	)
	for _, bypass := range []bool{true, false} {
		w := newTownOf(t, bypass, func(s *served) { s.Rates = map[string]maps.Rates{"a": {In: rate}} })
		rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
		rig.Route(t, w.outside, "fd00:1::/64", "2001:db8:1::1")
		for _, is4 := range []bool{true, false} {
			rig.SetOffloads(t, w.pods[0].Netns, "eth0", rig.Offloads{Sums: is4 == bypass}) // whose sums are right already, or not yet
			for _, c := range []struct {
				row         bpf.MapsPodWindow
				least, most int
			}{
				{bpf.MapsPodWindow{Part: 1024}, 50_000, 1 << 20}, {bpf.MapsPodWindow{Part: 16}, all, all + unit},
				{bpf.MapsPodWindow{Part: 4}, all / 4, all/4 + unit}, {bpf.MapsPodWindow{Part: 4, FlowsBefore: ^uint64(0)}, 2 * 1400, 2*1460 + unit},
			} {
				if got := w.held(t, netip.AddrPortFrom(w.pods[0].addr[is4], 7), c.row); got < c.least || got > c.most {
					t.Errorf("past the stack %t, IPv4 %t, %+v: its sender may have %d bytes on the way, want %d to %d", bypass, is4, c.row, got, c.least, c.most)
				}
			}
		}
	}
}

// held returns how much somebody may have on the way to a pod who is told what the row says.
func (w *town) held(t *testing.T, to netip.AddrPort, is bpf.MapsPodWindow) (window int) {
	t.Helper()
	m, err := maps.Open(datapath.MapsDir(w.Carry.BPFFS), false)
	w.must(err)
	defer m.Close()
	var key bpf.MapsPaceKey
	var row bpf.MapsPodPace
	if rows := m.PodPaces.Iterate(); !rows.Next(&key, &row) {
		t.Fatalf("no pod has a rate: %v", rows.Err())
	}
	for range 5 { // a machine that pauses begins another turn, of which other parts may come
		var now unix.Timespec
		w.must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		began := uint64(now.Nano())
		row.Window, row.Window.Began = is, began
		w.must(m.PodPaces.Put(&key, &row))
		w.must(w.outside.Do(func() (err error) {
			window, err = windowOf(to)
			return err
		}))
		w.must(m.PodPaces.Lookup(&key, &row))
		if row.Window.Began == began {
			return window
		}
	}
	t.Fatal("five turns were over at once")
	return 0
}

// windowOf returns how much may be on the way by a connection on which some has been acknowledged.
func windowOf(to netip.AddrPort) (window int, err error) {
	conn, err := net.DialTimeout("tcp", to.String(), patience)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := conn.Write(make([]byte, 500)); err != nil {
		return 0, err
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		var info *unix.TCPInfo
		var failed error
		err := raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		if err := errors.Join(err, failed); err != nil {
			return 0, err
		}
		if info.Unacked == 0 {
			return int(info.Snd_wnd), nil
		}
	}
	return 0, errors.New("what was sent is not acknowledged")
}
