package podnet

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/rig"
)

// payload is how much of a rate of 10 Mbit/s is TCP data; the rest is headers of Ethernet, IPv4 and
// TCP with timestamps.
const payload = 10e6 / 8 * 1448 / 1514

// shapesNotPolices checks that what a pod gets is shaped: it causes at most a hundredth of the
// retransmissions that a policer causes, which drops what comes too fast, and the rate is reached
// and kept.
func (w *oneNode) shapesNotPolices(t *testing.T) {
	// So much that a hundredth of what a policer makes senders retransmit can still be counted.
	const rate, size = 10e6 / 8, 3 * 10e6 / 8
	policer, err := minimal.AttachPolicer(w.pods[1].Netns, "eth0", rate, rate/10)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { w.must(policer.Close()) }()
	for _, ecn := range []string{"0", "1"} {
		t.Run("ECN "+ecn, func(t *testing.T) {
			for _, ns := range []*rig.Netns{w.outside, w.pods[0].Netns, w.pods[1].Netns} {
				w.sets(t, ns, "net/ipv4/tcp_ecn", ecn)
			}
			for _, flows := range []int{1, 16} {
				what := fmt.Sprintf("%d connections", flows)
				_, most := w.gotBy(t, w.pods[1], flows, size)
				t.Logf("%s, policed: %d segments again", what, most)
				if most < 100 {
					t.Errorf("%s: the policer has %d segments sent again", what, most)
				}
				w.requireGot(t, what, flows, size, 0.95*payload, max(most/100, 1))
			}
		})
	}
}

// gotBy returns how many bytes a second a pod gets from outside, and how many segments had to be
// retransmitted for that.
func (w *oneNode) gotBy(t *testing.T, p *pod, flows, size int) (rate float64, again int) {
	t.Helper()
	before := w.repeated(w.outside)
	rate = streamed(t, w.outside, p.Netns, p.addr[true], flows, size)
	return rate, w.repeated(w.outside) - before
}

// requireGot fails the test unless the first pod gets at least so much, but no more than its rate,
// with at most so many retransmissions. When a machine pauses, some segments are retransmitted
// needlessly and their connections start slowly again, so a bad result is measured again.
func (w *oneNode) requireGot(t *testing.T, what string, flows, size int, least float64, most int) {
	t.Helper()
	for n := 1; ; n++ {
		got, again := w.gotBy(t, w.pods[0], flows, size)
		t.Logf("%s: %.3f Mbit/s, %d segments again", what, got*8/1e6, again)
		switch {
		case got > 1.05*payload:
			t.Fatalf("%s: %.3f Mbit/s are more than the rate leaves", what, got*8/1e6)
		case got >= least && again <= most:
			return
		case n == 4:
			t.Errorf("%s: %.3f Mbit/s, want %.3f; %d segments again, want %d at the most", what, got*8/1e6, least*8/1e6, again, most)
			return
		}
	}
}

// holdsFar checks that senders a fifth of a second away may have more in flight than near ones, and
// so reach the rate as well.
func (w *oneNode) holdsFar(t *testing.T) {
	const rate = 10e6 / 8
	w.must(w.outside.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		far := netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			netlink.NetemQdiscAttrs{Latency: 200_000, Limit: 10_000})
		t.Cleanup(func() {
			if err := w.outside.Do(func() error { return netlink.QdiscDel(far) }); err != nil {
				t.Error(err)
			}
		})
		return netlink.QdiscAdd(far)
	}))
	// Cubic ends slow start by itself when round trips get longer, at a point that the noise of a
	// busy machine decides, and then takes longer than the test to reach the rate. Reno goes on
	// until something stops it, which must be the limit on what is in flight.
	w.sets(t, w.outside, "net/ipv4/tcp_congestion_control", "reno")
	for _, flows := range []int{1, 16} {
		w.requireGot(t, fmt.Sprintf("from far away, %d connections", flows), flows, 5*rate, 0.85*payload, 100)
	}
}

// repeated returns how many segments a namespace's connections have retransmitted.
func (n *node) repeated(ns *rig.Netns) (count int) {
	n.t.Helper()
	n.must(ns.Do(func() error {
		content, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if fields[0] != "Tcp:" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			for i, name := range names {
				if name == "RetransSegs" {
					count, err = strconv.Atoi(fields[i])
					return err
				}
			}
		}
		return errors.New("the kernel does not count what is sent again")
	}))
	return count
}
