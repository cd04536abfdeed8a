package podnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// later sends a datagram that its socket schedules some milliseconds ahead, behind datagrams to a
// second address that make the pod wait for less than that, and prints when it is due.
func later(args []string) int {
	err := func() error {
		wait, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		ahead, err := net.Dial("udp", args[1])
		if err != nil {
			return err
		}
		defer ahead.Close()
		conn, err := net.Dial("udp", args[0])
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		for range 100 {
			if _, err := ahead.Write(make([]byte, datagram)); err != nil {
				return err
			}
		}
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return err
		}
		control := make([]byte, unix.CmsgSpace(8))
		header := unix.Cmsghdr{Level: unix.SOL_SOCKET, Type: unix.SO_TXTIME}
		header.SetLen(unix.CmsgLen(8))
		binary.NativeEndian.PutUint64(control[0:], uint64(header.Len))
		binary.NativeEndian.PutUint32(control[8:], uint32(header.Level))
		binary.NativeEndian.PutUint32(control[12:], uint32(header.Type))
		due := now.Nano() + int64(wait)*1e6
		binary.NativeEndian.PutUint64(control[16:], uint64(due))
		var failed error
		err = raw.Control(func(fd uintptr) {
			var txtime [8]byte // struct sock_txtime
			binary.NativeEndian.PutUint32(txtime[:], unix.CLOCK_MONOTONIC)
			if failed = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_TXTIME, string(txtime[:])); failed == nil {
				_, failed = unix.SendmsgN(int(fd), []byte("later"), control, nil, 0)
			}
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		fmt.Println(due)
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// heed prints when that datagram arrives. Nothing reads the others, which fill a buffer of their
// own.
func heed(args []string) int {
	err := func() error {
		conn, err := net.ListenPacket("udp", args[0])
		if err != nil {
			return err
		}
		others, err := net.ListenPacket("udp", args[1])
		if err != nil {
			return err
		}
		defer others.Close()
		fmt.Println("ready")
		for data := make([]byte, 2*datagram); ; {
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				return err
			}
			n, _, err := conn.ReadFrom(data)
			if err != nil {
				return err
			}
			if n == len("later") {
				var now unix.Timespec
				err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
				fmt.Println(now.Nano())
				return err
			}
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// leavesPaced checks that a packet that its socket has scheduled leaves at that time, and not as
// soon as its pod's rate allows.
func (w *oneNode) leavesPaced(t *testing.T) {
	for _, to := range outsiders {
		if w.early(t, w.pods[1], to) > 0 {
			t.Log("this kernel does not keep the time of a datagram as it leaves a namespace, as newer ones do")
			continue
		}
		if early := w.early(t, w.pods[0], to); early > 0 {
			t.Errorf("to %s: it came %s before it was due", to, early)
		}
		w.dropsScheduled(t, w.pods[0], to)
	}
}

// dropsScheduled checks that a packet that its socket has scheduled later than any may wait is
// dropped, or a pod could fill the node's queues.
func (w *oneNode) dropsScheduled(t *testing.T, p *pod, to netip.Addr) {
	t.Helper()
	at, others := netip.AddrPortFrom(to, 11).String(), netip.AddrPortFrom(to, 12).String()
	sink := rig.NewChild(t, nil, w.outside, "heed", at, others)
	if line, err := sink.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("heed: %q, %v", line, err)
	}
	before := w.pace(false).Dropped
	rig.Child(t, nil, p.Netns, "later", at, others, "3000")
	if n := w.pace(false).Dropped - before; n != 1 {
		t.Errorf("to %s: %d packets are dropped, want the one that its socket has scheduled in three seconds", to, n)
	}
	rig.Child(t, nil, p.Netns, "later", at, others, "1") // ends the other
	w.must(sink.Wait())
}

// early returns how long before its time a packet arrives that a pod's socket has scheduled.
func (w *oneNode) early(t *testing.T, p *pod, to netip.Addr) time.Duration {
	t.Helper()
	at, others := netip.AddrPortFrom(to, 11).String(), netip.AddrPortFrom(to, 12).String()
	sink := rig.NewChild(t, nil, w.outside, "heed", at, others)
	if line, err := sink.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("heed: %q, %v", line, err)
	}
	due, err := strconv.ParseInt(strings.TrimSpace(rig.Child(t, nil, p.Netns, "later", at, others, "700")), 10, 64)
	w.must(err)
	line, err := sink.ReadLine()
	w.must(err)
	came, err := strconv.ParseInt(line, 10, 64)
	w.must(errors.Join(err, sink.Wait()))
	return time.Duration(due - came)
}

// limitsBBR checks that a pod whose connections use BBR, and so pace themselves by what is
// acknowledged, keeps to its rate too.
func (w *oneNode) limitsBBR(t *testing.T) {
	rate := float64(w.Rates["a"].Out)
	// The program at the pod's sockets chooses it like this.
	w.sets(t, w.pods[0].Netns, "net/ipv4/tcp_congestion_control", "bbr")
	w.streamsAt(t, outsiders[true], rate, 1, 0.02)
	w.streamsAt(t, outsiders[false], rate, 16, 0.02)
}

// sets sets a sysctl of a namespace until this part of the test ends.
func (n *node) sets(t *testing.T, ns *rig.Netns, name, value string) {
	t.Helper()
	var was []byte
	n.must(ns.Do(func() (err error) { was, err = os.ReadFile("/proc/sys/" + name); return err }))
	n.must(ns.SetSysctl(name, value))
	t.Cleanup(func() {
		if err := ns.SetSysctl(name, strings.TrimSpace(string(was))); err != nil {
			t.Error(err)
		}
	})
}

// choose dials, and prints the congestion control of the connection.
func choose(args []string) int {
	err := func() error {
		conn, err := net.DialTimeout("tcp", args[0], patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		var name string
		var failed error
		err = raw.Control(func(fd uintptr) { name, failed = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
		fmt.Println(name)
		return errors.Join(err, failed)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestBandwidthOfAgent checks that an agent gives new connections of a pod BBR, that it starts and
// stops keeping rates, and that it keeps a pod with a proxy on the node to its rate.
func TestBandwidthOfAgent(t *testing.T) {
	rig.Root(t)
	d := newOneNodeWithProxies(t, "bpf", "--metrics-address="+metricsAddress, "--bandwidth=true", "--bbr=annotated")
	d.part(t, "BBR", nil, d.choosesBBR)
	d.part(t, "switched", nil, d.switches)
	d.part(t, "proxied", nil, d.limitsProxied)
}

// choosesBBR checks that new connections of a pod use BBR exactly while its annotation says so, and
// that those of another pod and of the node never do.
func (d *oneNodeWithProxies) choosesBBR(t *testing.T) {
	of := func(cgroup *rig.Cgroup, ns *rig.Netns, is4 bool) string {
		t.Helper()
		return strings.TrimSpace(rig.Child(t, cgroup, ns, "choose", netip.AddrPortFrom(outsiders[is4], 7).String()))
	}
	const usual = "reno"
	for _, p := range []*pod{d.a, d.b} {
		d.sets(t, p.Netns, "net/ipv4/tcp_congestion_control", usual)
	}
	for _, c := range []struct{ when, annotations, want string }{
		{"at first", "", usual}, {"annotated", `fairlead.io/bbr: "true"`, "bbr"}, {"not any more", `fairlead.io/bbr: "false"`, usual},
	} {
		d.annotate(c.annotations)
		for is4 := range outsiders {
			d.until(fmt.Sprintf("%s, IPv4 %t: connections of the pod have %s", c.when, is4, c.want), func() bool { return of(d.cgroup, d.a.Netns, is4) == c.want })
			for who, got := range map[string]string{"another pod": of(d.oneNodeWithAgent.cgroup, d.b.Netns, is4), "the node": of(d.oneNodeWithAgent.cgroup, d.ns, is4)} {
				if got != usual {
					t.Errorf("%s, IPv4 %t: connections of %s have %s", c.when, is4, who, got)
				}
			}
		}
	}
}
