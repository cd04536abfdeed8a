package podnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// TestSendersHeld checks that a sender to a pod with a rate may have no more in flight than the
// pod's row says, but at least two segments, and as much as the pod has room for if the row sets no
// limit.
func TestSendersHeld(t *testing.T) {
	rig.Root(t)
	const (
		rate = 200e3
		all  = rate / 5
		unit = 2 << 10 // granularity of the windows that a pod announces
	)
	for _, bypass := range []bool{true, false} {
		w := newOneNodeOf(t, bypass, func(s *agentConfig) { s.Rates = map[string]maps.Rates{"a": {In: rate}} })
		rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
		rig.Route(t, w.outside, "fd00:1::/64", "2001:db8:1::1")
		for _, is4 := range []bool{true, false} {
			// With one family checksums are complete already, with the other they are left to the
			// device.
			rig.SetOffloads(t, w.pods[0].Netns, "eth0", rig.Offloads{Sums: is4 == bypass})
			for _, c := range []struct {
				row         bpf.MapsReceiveWindow
				least, most int
			}{
				{bpf.MapsReceiveWindow{Part: 1024}, 50_000, 1 << 20}, {bpf.MapsReceiveWindow{Part: 16}, all, all + unit},
				{bpf.MapsReceiveWindow{Part: 4}, all / 4, all/4 + unit}, {bpf.MapsReceiveWindow{Part: 4, FlowsBefore: ^uint64(0)}, 2 * 1400, 2*1460 + unit},
			} {
				if got := w.held(t, netip.AddrPortFrom(w.pods[0].addr[is4], 7), c.row); got < c.least || got > c.most {
					t.Errorf("past the stack %t, IPv4 %t, %+v: its sender may have %d bytes on the way, want %d to %d", bypass, is4, c.row, got, c.least, c.most)
				}
			}
		}
		w.leavesEnds(t)
	}
}

// leavesEnds checks that only segments of a connection that still has a socket announce a smaller
// window. When a connection's socket is gone, the kernel answers for it, from one socket for all
// such connections, so nothing says in which unit those segments give their window.
func (w *oneNode) leavesEnds(t *testing.T) {
	a := w.pods[0]
	w.sets(t, a.Netns, "net/ipv4/tcp_window_scaling", "0")
	var listener net.Listener
	var client net.Conn
	var heard net.PacketConn
	w.must(a.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(a.addr[true], 8).String())
		return err
	}))
	defer listener.Close()
	w.must(w.outside.Do(func() (err error) {
		if client, err = net.DialTimeout("tcp", listener.Addr().String(), patience); err == nil {
			heard, err = net.ListenPacket("ip4:tcp", outsiders[true].String())
		}
		return err
	}))
	defer client.Close()
	defer heard.Close()
	server, err := listener.Accept()
	w.must(err)
	w.must(heard.SetReadDeadline(time.Now().Add(patience)))
	w.setWindow(bpf.MapsReceiveWindow{Bytes: 1, Part: 4, FlowsBefore: ^uint64(0)})
	w.must(server.Close())
	held := windowAt(t, heard, 8, fin)
	w.until("the pod's end has no socket any more", func() bool { return w.isEnding(a, 8, client.LocalAddr().(*net.TCPAddr).Port) })
	w.must(client.Close())
	if last := windowAt(t, heard, 8, 0); held > 1<<14 || last < 1<<15 {
		t.Errorf("of its last packets a connection tells of %d bytes, and the kernel for it of %d", held, last)
	}
}

// held returns how much a sender may have in flight to a pod whose row has this window.
func (w *oneNode) held(t *testing.T, to netip.AddrPort, is bpf.MapsReceiveWindow) (window int) {
	t.Helper()
	// A machine that pauses starts another round, which may have another part.
	for range 5 {
		same := w.setWindow(is)
		w.sendsToGroup(w.pods[0])
		w.must(w.outside.Do(func() (err error) {
			window, err = windowOf(to)
			return err
		}))
		if same() {
			return window
		}
	}
	t.Fatal("five turns were over at once")
	return 0
}

// setWindow starts a round in which the row of the pod with a rate has this window. It returns a
// function that reports whether that round still lasts.
func (w *oneNode) setWindow(is bpf.MapsReceiveWindow) (goesOn func() bool) {
	w.t.Helper()
	m, err := maps.Open(datapath.MapsDir(w.Forwarding.BPFFS), false)
	w.must(err)
	w.t.Cleanup(func() { m.Close() })
	var key bpf.MapsPaceKey
	var row bpf.MapsPodPace
	rows := m.PodPaces.Iterate()
	for rows.Next(&key, &row) && key.Kind != uint32(bpf.MapsPaceKindPACE_IN) {
	}
	if key.Kind != uint32(bpf.MapsPaceKindPACE_IN) {
		w.t.Fatalf("no pod gets at a rate: %v", rows.Err())
	}
	var now unix.Timespec
	w.must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	row.Window, row.Window.Began = is, uint64(now.Nano())
	w.must(m.PodPaces.Put(&key, &row))
	return func() bool {
		began := row.Window.Began
		w.must(m.PodPaces.Lookup(&key, &row))
		return row.Window.Began == began
	}
}

// sendsToGroup sends a packet from the node to all nodes on a pod's link, as the kernel's own reports
// of groups are. It counts as no sender.
func (w *oneNode) sendsToGroup(p *pod) {
	w.t.Helper()
	w.must(w.ns.Do(func() error {
		conn, err := net.Dial("udp6", fmt.Sprintf("[ff02::1%%%s]:9", p.device()))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(make([]byte, 200))
		return err
	}))
}

// windowAt returns the window that the next packet from a port announces that has this flag and no
// other of fin, syn and rst; with 0, none of them.
func windowAt(t *testing.T, heard net.PacketConn, port uint16, flag byte) int {
	t.Helper()
	for packet := make([]byte, 1500); ; {
		n, _, err := heard.ReadFrom(packet) // without the IPv4 header
		if err != nil {
			t.Fatal(err)
		}
		if n < 20 || binary.BigEndian.Uint16(packet) != port {
			continue
		}
		if flags := packet[13] & (fin | syn | rst); flags == flag {
			return int(binary.BigEndian.Uint16(packet[14:]))
		}
	}
}

// TCP flags.
const fin, syn, rst = 1, 2, 4

// isEnding reports whether the socket of a pod's connection is gone, and only that is left which
// answers the other end's last packet.
func (n *node) isEnding(p *pod, port, other int) (ending bool) {
	n.t.Helper()
	n.must(p.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/tcp")
		for line := range strings.Lines(string(text)) {
			// FIN-WAIT-2: the socket is closed, so the kernel keeps only a timewait entry.
			const waits = "05"
			fields := strings.Fields(line)
			ending = ending || strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) &&
				strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", other)) && fields[3] == waits
		}
		return err
	}))
	return ending
}

// windowOf returns how much a new connection may have in flight, once some of its data has been
// acknowledged.
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
