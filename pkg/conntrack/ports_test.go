package conntrack

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// lent are the ports in the tests below: the lower 50 and the upper 50, of which one pod has 25.
var lent = Ports{First: 1024, Last: 1123, Shared: true}

// lend returns both directions of the reply of a flow that goes to a destination with an address
// and port of the node.
func lend(client, node, to string, proto model.Protocol, flags uint8) (maps.Flow, maps.FlowRow) {
	c, n, d := netip.MustParseAddrPort(client), netip.MustParseAddrPort(node), netip.MustParseAddrPort(to)
	return maps.Flow{
		Saddr: maps.AddrOf(d.Addr()), Sport: maps.PortOf(d.Port()), Daddr: maps.AddrOf(n.Addr()), Dport: maps.PortOf(n.Port()), Proto: uint8(proto),
	}, maps.FlowRow{Daddr: maps.AddrOf(c.Addr()), Dport: maps.PortOf(c.Port()), Kind: maps.FlowReply | flags, State: maps.FlowOpen, Seen: 1 << 20}
}

// The fullest destination is found for each kind of user, among established and half-open flows.
func TestPortUse(t *testing.T) {
	w := newMemoryCollector()
	w.walk.ports = newPortUse(lent)
	add := func(half bool, n int, client, to string, proto model.Protocol, flags uint8, first int) {
		for i := range n {
			key, row := lend(fmt.Sprintf("%s:%d", client, 5000+i), fmt.Sprintf("192.0.2.1:%d", first+i), to, proto, flags)
			w.rows[index(half)][key] = row
		}
	}
	add(false, 30, "198.51.100.7", "10.2.0.9:80", model.TCP, 0, 1024)
	add(true, 10, "198.51.100.7", "10.2.0.9:80", model.TCP, 0, 1054)
	add(false, 38, "198.51.100.7", "10.2.0.9:80", model.UDP, 0, 1024)                          // another protocol
	add(false, 38, "198.51.100.7", "10.2.0.9:81", model.TCP, 0, 1024)                          // another port
	add(false, 38, "198.51.100.7", "10.2.0.8:80", model.TCP, 0, 1024)                          // another address
	add(false, 60, "198.51.100.7", "10.2.0.9:80", model.TCP, 0, 2000)                          // not among the ports
	add(false, 12, "10.1.0.5", "203.0.113.1:53", model.UDP, uint8(maps.FlowMasqueraded), 1074) // a pod
	add(false, 11, "10.1.0.6", "203.0.113.1:53", model.UDP, uint8(maps.FlowMasqueraded), 1090) // another
	add(false, 13, "10.1.0.6", "203.0.113.2:53", model.UDP, uint8(maps.FlowMasqueraded), 1090)
	// The node's own flows use the pods' ports and are no pod's.
	add(false, 4, "192.0.2.1", "203.0.113.1:53", model.UDP, uint8(maps.FlowHost), 1110)
	// A backend on this node answers to the client itself.
	for i := range 60 {
		key, row := lend("198.51.100.7:1024", fmt.Sprintf("198.51.100.7:%d", 1024+i), "10.1.0.5:80", model.TCP, 0)
		w.rows[0][key] = row
	}
	w.pass(t.Context())
	want := [PortUsers]PortUse{
		OtherUsers: {Used: 40, Of: 50, Protocol: model.TCP, Destination: netip.MustParseAddrPort("10.2.0.9:80")},
		PodUsers:   {Used: 27, Of: 50, Protocol: model.UDP, Destination: netip.MustParseAddrPort("203.0.113.1:53")},
		OnePod: {Used: 13, Of: 25, Protocol: model.UDP, Destination: netip.MustParseAddrPort("203.0.113.2:53"),
			Pod: netip.MustParseAddr("10.1.0.6")},
	}
	same := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	sameAddr := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(want, w.Stats().Ports, same, sameAddr); diff != "" {
		t.Errorf("ports in use (-want +have):\n%s", diff)
	}
	// There are as many ports as 4 of 5, so a Collector looks as often as it can.
	for range 10 {
		w.pass(t.Context())
	}
	if w.interval != soonest {
		t.Errorf("the next pass is in %v, want %v", w.interval, soonest)
	}
	clear(w.rows[0])
	clear(w.rows[1])
	for range 10 {
		w.pass(t.Context())
	}
	if use := w.Stats().Ports; use[OtherUsers] != (PortUse{Of: 50}) || w.interval != latest {
		t.Errorf("after all have ended, %+v are in use, and the next pass is in %v", use, w.interval)
	}
}

// Without masquerading all ports are for others, and without devices there are none.
func TestPortRoom(t *testing.T) {
	for _, tt := range []struct {
		ports Ports
		want  [PortUsers]int
	}{
		{Ports{1024, 1123, false}, [PortUsers]int{100, 100, 50}}, {Ports{1024, 1024, true}, [PortUsers]int{1, 1, 1}},
		{Ports{1024, 1028, true}, [PortUsers]int{3, 3, 2}}, {Ports{}, [PortUsers]int{}},
	} {
		if got := tt.ports.room(); got != tt.want {
			t.Errorf("%+v: room for %v, want %v", tt.ports, got, tt.want)
		}
	}
}

// Very many other destinations make the count of the fullest one at most a little too low, and
// never too high, and it is still the one that is named.
func TestPortUseAmongMany(t *testing.T) {
	u := newPortUse(Ports{First: 1024, Last: 29999})
	const full, others = 10_000, 500_000
	for i := range others {
		key, row := lend("198.51.100.7:1", fmt.Sprintf("192.0.2.1:%d", 1024+i%20_000), fmt.Sprintf("10.%d.%d.%d:80", 3+i>>16, i>>8&255, i&255), model.TCP, 0)
		u.add(&key, &row)
		if i%(others/full) == 0 {
			key, row = lend("198.51.100.7:1", fmt.Sprintf("192.0.2.1:%d", 1024+i/(others/full)), "10.2.0.9:80", model.TCP, 0)
			u.add(&key, &row)
		}
	}
	got := u.fullest()[OtherUsers]
	if got.Destination != netip.MustParseAddrPort("10.2.0.9:80") || got.Used > full || got.Used < full-4*others/portBuckets {
		t.Errorf("%+v, want %d toward 10.2.0.9:80", got, full)
	}
}

// kernelFlows are established flows in a map of the kernel.
type kernelFlows struct {
	*memory
	visit func(func([]maps.Flow, []maps.FlowRow) error) error
}

func (k *kernelFlows) Each(half bool, visit func([]maps.Flow, []maps.FlowRow) error) error {
	if half {
		return nil
	}
	return k.visit(visit)
}

// The cost of a whole walk over a million rows, of which half hold a port, as a multiple of one that
// does not look for the fullest destination. Both take turns, and the fastest of each count, since
// other work on the machine only ever makes them slower.
func BenchmarkPortUse(b *testing.B) {
	rig.Root(b)
	const n = 1_000_000
	m, err := maps.NewFlowMap(n)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	var keys []maps.Flow
	var rows []maps.FlowRow
	for i := range n / 2 {
		key, row := lend(fmt.Sprintf("198.51.%d.%d:%d", i>>8&255, i&255, 1+i>>16), fmt.Sprintf("192.0.2.1:%d", 1024+i%14_000),
			fmt.Sprintf("10.2.%d.%d:80", i/14_000>>8, i/14_000&255), model.TCP, uint8(i%2)*uint8(maps.FlowMasqueraded))
		request := maps.BackOf(key, &row)
		keys, rows = append(keys, key, request), append(rows, row, maps.FlowRow{Daddr: key.Saddr, Dport: key.Sport, Seen: row.Seen, State: row.State})
	}
	if _, err := m.BatchUpdate(keys, rows, nil); err != nil {
		b.Fatal(err)
	}
	var buffer maps.FlowBuffer
	var fastest [2]time.Duration
	var collectors [2]*memoryCollector
	for i, ports := range []Ports{{}, {First: 1024, Last: 29999, Shared: true}} {
		collectors[i] = newMemoryCollector()
		collectors[i].walk.ports, fastest[i] = newPortUse(ports), time.Hour
	}
	for b.Loop() {
		for i, w := range collectors {
			flows := &kernelFlows{w.memory, func(visit func([]maps.Flow, []maps.FlowRow) error) error { return maps.EachFlow(m, &buffer, visit) }}
			start := time.Now()
			if err := w.walk.all(flows, 0, &w.limits); err != nil || w.walk.tally.rows[0] != n {
				b.Fatal(w.walk.tally.rows, err)
			}
			fastest[i] = min(fastest[i], time.Since(start))
		}
	}
	b.ReportMetric(float64(fastest[0].Nanoseconds())/n, "ns/row-without")
	b.ReportMetric(float64(fastest[1].Nanoseconds())/n, "ns/row")
	b.ReportMetric(float64(fastest[1])/float64(fastest[0]), "ratio")
}
