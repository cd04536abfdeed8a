package bpf

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// A thousand rate-limited pods fit in the maps, and a packet of one of them takes no longer because
// of the others: nobody looks at their rows. The same program is timed with one row and with all of
// them in turn, and the minimum of each is compared, because disturbances only add time.
func TestDeparturesOfMany(t *testing.T) {
	const pods, turns, runs, goal, most = 1000, 15, 100_000, 1.05, 1.2
	const rate = 1e9
	p := newPaced(t, rate)
	list := []maps.Pod{{
		Addrs: []netip.Addr{netip.MustParseAddr(pod4), netip.MustParseAddr(pod6)}, Index: 1,
		MAC: [6]byte([]byte(podMAC)), HostMAC: [6]byte([]byte(hostMAC)), Rates: maps.Rates{Out: rate},
	}}
	for i := 1; i < pods; i++ {
		list = append(list, maps.Pod{
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)})}, Index: uint32(10_000 + i),
			MAC: [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}, HostMAC: [6]byte([]byte(hostMAC)), Rates: maps.Rates{Out: uint64(1e6 + i)},
		})
	}
	frame := podFrame(true, udp, 958)
	took := map[int][]time.Duration{}
	for range turns {
		for _, n := range []int{1, pods} {
			if _, err := p.maps.SetPods(list[:n]); err != nil {
				t.Fatal(err)
			}
			rows, err := maps.Paces(p.maps.PodRates, p.maps.PodPaces)
			if err != nil || len(rows) != n || n > 1 && rows[10_000+pods-1].Out.Rate != 1e6+pods-1 {
				t.Fatalf("%d pods have %d rows, %v", n, len(rows), err)
			}
			start := now(t) + ahead
			p.pace(t, start)
			took[n] = append(took[n], p.repeat(t, frame, runs))
			if row := p.pace(t, 0); row.Next != (start+runs*uint64(len(frame)))*part {
				t.Fatalf("with %d pods the packets take %d ns", n, row.Next/part-start)
			}
		}
	}
	one, all := float64(slices.Min(took[1]))/runs, float64(slices.Min(took[pods]))/runs
	t.Logf("a packet takes %.1f ns with 1 pod, %.1f with %d: %.3f times, goal %.2f", one, all, pods, all/one, goal)
	if all > most*one {
		t.Errorf("with %d pods a packet takes %.3f times as long as with one", pods, all/one)
	}
}

// repeat has the pod send a frame the given number of times, and returns the CPU time for that.
func (p *ratedPod) repeat(t *testing.T, frame []byte, runs int) (took time.Duration) {
	t.Helper()
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Repeat: uint32(runs), Context: skbtimed{Came: 1}}
	if err := p.do(func() error {
		return rig.WithoutSignals(func() error {
			before, err := threadTime()
			if err != nil {
				return err
			}
			if _, err = p.programs["tc_from_pod"].Run(&run); err != nil {
				return err
			}
			after, err := threadTime()
			took = after - before
			return err
		})
	}); err != nil {
		t.Fatal(err)
	}
	return took
}

func threadTime() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
	return time.Duration(now.Nano()), err
}
