package podnet

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/rig"
)

// payload is how much of a rate of 10 Mbit/s is data of TCP, with the headers of Ethernet, IPv4 and TCP with its times around it.
const payload = 10e6 / 8 * 1448 / 1514

// What a pod gets is shaped: next to nothing has to be sent again of what a policer costs that drops what comes too fast, and the rate is reached.
func TestBandwidthPoliced(t *testing.T) {
	rig.Root(t)
	needFq(t)
	const rate = 10e6 / 8
	w := newTownOf(t, true, func(s *served) { s.Rates = map[string]maps.Rates{"a": {In: rate}} })
	rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
	policer, err := minimal.AttachPolicer(w.pods[1].Netns, "eth0", rate, rate/10)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { w.must(policer.Close()) }()
	for _, c := range []struct {
		ecn   string
		flows int
	}{{"0", 1}, {"0", 16}, {"1", 1}, {"1", 16}} {
		for _, ns := range []*rig.Netns{w.outside, w.pods[0].Netns, w.pods[1].Netns} {
			w.must(ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_ecn", []byte(c.ecn), 0) }))
		}
		var again [2]int
		var got [2]float64
		for i, p := range w.pods[:2] {
			before := w.repeated(w.outside)
			got[i] = streamed(t, w.outside, p.Netns, p.addr[true], c.flows, 2*rate)
			again[i] = w.repeated(w.outside) - before
			t.Logf("%s, ECN %s, %d connections: %.3f Mbit/s, %d segments again",
				[]string{"shaped", "policed"}[i], c.ecn, c.flows, got[i]*8/1e6, again[i])
		}
		if again[1] < 100 || again[0]*20 > again[1] { // a machine that pauses has some sent again for nothing
			t.Errorf("ECN %s, %d connections: %d segments were sent again, and %d where they are policed", c.ecn, c.flows, again[0], again[1])
		}
		if got[0] < 0.9*payload {
			t.Errorf("ECN %s, %d connections: %.3f Mbit/s", c.ecn, c.flows, got[0]*8/1e6)
		}
	}
}

// Senders that are a fifth of a second away need more on their way than those that are near, and get the rate as well.
func TestBandwidthFar(t *testing.T) {
	rig.Root(t)
	needFq(t)
	const rate = 10e6 / 8
	w := newTownOf(t, true, func(s *served) { s.Rates = map[string]maps.Rates{"a": {In: rate}} })
	rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
	w.must(w.outside.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			netlink.NetemQdiscAttrs{Latency: 200_000, Limit: 10_000}))
	}))
	// Cubic ends its slow start by itself when round trips get longer, at a point that a busy machine's noise decides, and
	// then takes longer than the test to reach the rate. Reno goes on until something stops it, which must be the hold.
	w.must(w.outside.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0)
	}))
	for _, flows := range []int{1, 16} {
		before := w.repeated(w.outside)
		got := streamed(t, w.outside, w.pods[0].Netns, w.pods[0].addr[true], flows, 5*rate)
		again := w.repeated(w.outside) - before
		t.Logf("%d connections: %.3f Mbit/s, %d segments again", flows, got*8/1e6, again)
		if got < 0.7*payload || again > 100 {
			t.Errorf("%d connections: %.3f Mbit/s, %d segments again", flows, got*8/1e6, again)
		}
	}
}

// repeated returns how many segments somebody's connections have sent again.
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
