package podnet

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/rig"
)

// What a pod gets is shaped: next to nothing has to be sent again of what a policer costs that drops what comes too fast. Of many connections
// without ECN this is not so: together they always have more on their way than may wait, and lose whole merged packets.
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
		most  float64 // of what is sent again to who is policed; a machine that pauses has some sent again for nothing
	}{{"0", 1, 0.05}, {"0", 16, 0.9}, {"1", 1, 0.1}, {"1", 16, 0.05}} {
		for _, ns := range []*rig.Netns{w.outside, w.pods[0].Netns, w.pods[1].Netns} {
			w.must(ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_ecn", []byte(c.ecn), 0) }))
		}
		var again [2]int
		for i, p := range w.pods[:2] {
			before := w.repeated(w.outside)
			got := streamed(t, w.outside, p.Netns, p.addr[true], c.flows, 2*rate)
			again[i] = w.repeated(w.outside) - before
			t.Logf("%s, ECN %s, %d connections: %.3f Mbit/s, %d segments again",
				[]string{"shaped", "policed"}[i], c.ecn, c.flows, got*8/1e6, again[i])
		}
		if again[1] < 100 || float64(again[0]) > c.most*float64(again[1]) {
			t.Errorf("ECN %s, %d connections: %d segments were sent again, and %d where they are policed", c.ecn, c.flows, again[0], again[1])
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
