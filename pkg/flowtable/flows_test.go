package flowtable

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
	"fairlead.io/fairlead/test/rig"
)

// shift makes a tick of these tests four jiffies.
const shift = 2

// standaloneFlows is a Flows over its own maps, and the tick when it was created.
type standaloneFlows struct {
	*Flows
	maps *maps.Maps
	now  uint32
}

func newStandaloneFlows(t testing.TB) *standaloneFlows {
	t.Helper()
	rig.Root(t)
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	flows, err := New(m)
	if err != nil {
		t.Fatal(errors.Join(err, m.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(flows.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	jiffies, err := flows.Jiffies()
	if err != nil {
		t.Fatal(err)
	}
	return &standaloneFlows{flows, m, uint32(jiffies >> shift)}
}

// direction is one row of a flow: how many ticks ago it was used, and its state.
type direction struct {
	idle  int
	state uint8
}

// absent returns a direction without a row.
func absent() direction { return direction{idle: -1} }

// pair returns the keys of the n-th flow.
func pair(n int, proto uint8) maps.Doomed {
	vip, backend := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.1.0.1")
	client := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	port := maps.PortOf(uint16(n>>16 + 1024))
	return maps.Doomed{
		Request: maps.Flow{Saddr: maps.AddrOf(client), Daddr: maps.AddrOf(vip), Sport: port, Dport: maps.PortOf(80), Proto: proto},
		Reply:   maps.Flow{Saddr: maps.AddrOf(backend), Daddr: maps.AddrOf(client), Sport: maps.PortOf(8080), Dport: port, Proto: proto},
	}
}

// rowTo returns the row of a flow whose replies have the key back.
func rowTo(back maps.Flow) maps.FlowRow {
	return maps.FlowRow{Saddr: back.Daddr, Daddr: back.Saddr, Sport: back.Dport, Dport: back.Sport}
}

// enter writes the rows of a flow.
func (w *standaloneFlows) enter(t testing.TB, half bool, d maps.Doomed, request, reply direction) {
	t.Helper()
	put := func(key, back maps.Flow, flags uint8, at direction) {
		if at == absent() {
			return
		}
		row := rowTo(back)
		row.Seen, row.State, row.Kind = w.now-uint32(at.idle), at.state, flags
		if err := w.rows(half).Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
	put(d.Request, d.Reply, 0, request)
	put(d.Reply, d.Request, maps.FlowReply, reply)
}

// left returns how many of a flow's rows exist.
func (w *standaloneFlows) left(t testing.TB, half bool, d maps.Doomed) (n int) {
	t.Helper()
	for _, key := range []maps.Flow{d.Request, d.Reply} {
		var row maps.FlowRow
		err := w.rows(half).Lookup(key, &row)
		if err == nil {
			n++
		} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	return n
}

// limits returns a different number for every class and phase, far enough apart for a slow machine.
func limits() *maps.FlowLimits {
	return &maps.FlowLimits{
		maps.ClassTCP:  {4000_000, 3000_000, 1000_000, 100_000, 500_000},
		maps.ClassUDP:  {2000_000, 2000_000, 2000_000, 2000_000, 400_000},
		maps.ClassSCTP: {700_000, 700_000, 700_000, 700_000, 700_000},
	}
}

// Collect judges both rows of a flow together, by the one used last and by how many directions have
// ended.
func TestCollect(t *testing.T) {
	w := newStandaloneFlows(t)
	open := func(idle int) direction { return direction{idle, maps.FlowOpen} }
	closing := func(idle int) direction { return direction{idle, maps.FlowClosing} }
	reset := func(idle int) direction { return direction{idle, maps.FlowReset} }
	none := absent()
	const tcp, udp, sctp = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP
	for n, tt := range []struct {
		name           string
		half           bool
		proto          uint8
		why            uint32
		request, reply direction
		deleted        bool
	}{
		{"used", false, tcp, maps.DoomIdle, open(0), open(0), false},
		{"idle for less than it may be", false, tcp, maps.DoomIdle, open(3900_000), open(3900_000), false},
		{"idle", false, tcp, maps.DoomIdle, open(4000_000), open(4100_000), true},
		{"only the request is used", false, tcp, maps.DoomIdle, open(5), open(5000_000), false},
		{"only the reply is used", false, tcp, maps.DoomIdle, open(5000_000), open(5), false},
		{"used later than now", false, tcp, maps.DoomIdle, open(5000_000), open(-100_000), false},
		{"half closed by the client", false, tcp, maps.DoomIdle, closing(2900_000), open(2900_000), false},
		{"half closed by the backend", false, tcp, maps.DoomIdle, open(2900_000), closing(2900_000), false},
		{"half closed and idle", false, tcp, maps.DoomIdle, open(3000_000), closing(3000_000), true},
		{"closed", false, tcp, maps.DoomIdle, closing(900_000), closing(2000_000), false},
		{"closed and idle", false, tcp, maps.DoomIdle, closing(1000_000), closing(1000_000), true},
		{"reset by the client", false, tcp, maps.DoomIdle, reset(90_000), open(90_000), false},
		{"reset by the client and idle", false, tcp, maps.DoomIdle, reset(100_000), open(100_000), true},
		{"reset by the backend and idle", false, tcp, maps.DoomIdle, closing(100_000), reset(100_000), true},
		{"no request", false, tcp, maps.DoomIdle, none, open(2900_000), false},
		{"no request and idle", false, tcp, maps.DoomIdle, none, open(3000_000), true},
		{"no reply", false, tcp, maps.DoomIdle, closing(1000_000), none, true},
		{"neither", false, tcp, maps.DoomIdle, none, none, false},
		{"datagrams", false, udp, maps.DoomIdle, open(1900_000), open(1900_000), false},
		{"datagrams, idle", false, udp, maps.DoomIdle, open(2000_000), open(2000_000), true},
		{"association", false, sctp, maps.DoomIdle, open(600_000), open(600_000), false},
		{"association, idle", false, sctp, maps.DoomIdle, open(700_000), open(700_000), true},
		{"stale and used", false, udp, maps.DoomStale, open(0), open(0), true},
		{"flushed and used", false, tcp, maps.DoomFlushed, open(0), open(0), true},

		{"half open", true, tcp, maps.DoomIdle, open(5000_000), open(400_000), false},
		{"half open, idle, with a request that has no time", true, tcp, maps.DoomIdle, open(0), open(500_000), true},
		{"half open association, with a request that has no time", true, sctp, maps.DoomIdle, open(0), open(700_000), true},
		{"half open datagrams, request used", true, udp, maps.DoomIdle, open(0), open(500_000), false},
		{"half open datagrams, reply used", true, udp, maps.DoomIdle, open(500_000), open(0), false},
		{"half open datagrams, idle", true, udp, maps.DoomIdle, open(400_000), open(400_000), true},
		{"half open, the reply was evicted", true, tcp, maps.DoomIdle, open(0), none, true},
		{"half open datagrams, the reply was evicted", true, udp, maps.DoomIdle, open(0), none, false},
		{"half open datagrams, the reply was evicted, idle", true, udp, maps.DoomIdle, open(400_000), none, true},
		{"half open, the request was evicted", true, udp, maps.DoomIdle, none, open(0), false},
		{"half open, the request was evicted, idle", true, udp, maps.DoomIdle, none, open(400_000), true},
		{"half open, stale", true, udp, maps.DoomStale, open(0), open(0), true},
	} {
		d := pair(n, tt.proto)
		d.Why = tt.why
		w.enter(t, tt.half, d, tt.request, tt.reply)
		before := w.left(t, tt.half, d)
		list := []maps.Doomed{d}
		if err := w.Collect(tt.half, shift, limits(), list); err != nil {
			t.Fatal(err)
		}
		want, outcome := before, maps.DoomSpared
		if tt.deleted {
			want, outcome = 0, maps.DoomDeleted
		}
		if have := w.left(t, tt.half, d); have != want || list[0].Outcome != outcome {
			t.Errorf("%s: %d of %d rows are left, want %d; outcome %d, want %d", tt.name, have, before, want, list[0].Outcome, outcome)
		}
		if err := errors.Join(w.remove(d.Request), w.remove(d.Reply)); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *standaloneFlows) remove(key maps.Flow) error {
	for _, m := range []*ebpf.Map{w.open, w.half} {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// Collect does not delete a row that belongs to another flow by now.
func TestCollectOthers(t *testing.T) {
	w := newStandaloneFlows(t)
	d, foreign := pair(1, unix.IPPROTO_UDP), pair(2, unix.IPPROTO_UDP)
	old := direction{3000_000, maps.FlowOpen}
	w.enter(t, false, d, old, absent())
	row := rowTo(foreign.Request) // the port was given to another client
	row.Kind = maps.FlowReply
	if err := w.open.Put(d.Reply, row); err != nil {
		t.Fatal(err)
	}
	d.Why = maps.DoomStale
	if err := w.Collect(false, shift, limits(), []maps.Doomed{d}); err != nil {
		t.Fatal(err)
	}
	if err := w.open.Lookup(d.Request, &row); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("the request still exists: %v", err)
	}
	if err := w.open.Lookup(d.Reply, &row); err != nil {
		t.Errorf("the other flow's row: %v", err)
	}
}

// Each visits, and Collect deletes, more flows than fit into one run or one batch, each of them
// once.
func TestEachAndCollectMany(t *testing.T) {
	w := newStandaloneFlows(t)
	const n = 10_000
	for i := range n {
		w.enter(t, false, pair(i, unix.IPPROTO_TCP), direction{5000_000, maps.FlowOpen}, direction{5000_000, maps.FlowOpen})
	}
	seen := map[maps.Flow]int{}
	var list []maps.Doomed
	err := w.Each(false, func(keys []maps.Flow, rows []maps.FlowRow) error {
		for i, key := range keys {
			seen[key]++
			if rows[i].Kind&maps.FlowReply == 0 {
				list = append(list, maps.Doomed{Request: key, Reply: maps.BackOf(key, &rows[i])})
			}
		}
		return nil
	})
	if err != nil || len(seen) != 2*n || len(list) != n {
		t.Fatalf("visited %d rows and %d requests, want %d and %d: %v", len(seen), len(list), 2*n, n, err)
	}
	for key, times := range seen {
		if times != 1 {
			t.Errorf("visited %v %d times", key, times)
		}
	}
	if err := w.Collect(false, shift, limits(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if list[i].Outcome != maps.DoomDeleted {
			t.Fatalf("flow %d: outcome %d", i, list[i].Outcome)
		}
	}
	count := 0
	if err := w.Each(false, func(keys []maps.Flow, _ []maps.FlowRow) error { count += len(keys); return nil }); err != nil || count > 0 {
		t.Errorf("%d rows are left: %v", count, err)
	}
}

// An error of visit ends Each, which returns it.
func TestEachStops(t *testing.T) {
	w := newStandaloneFlows(t)
	for i := range 5000 {
		w.enter(t, false, pair(i, unix.IPPROTO_TCP), direction{}, direction{})
	}
	stop, calls := errors.New("stop"), 0
	err := w.Each(false, func([]maps.Flow, []maps.FlowRow) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// The programs' clock runs at the rate that MeasureTick returns.
func TestJiffies(t *testing.T) {
	w := newStandaloneFlows(t)
	tick, err := ticks.Measure()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	first, err := w.Jiffies()
	if err != nil {
		t.Fatal(err)
	}
	last := first
	for last < first+1<<tick.Shift>>2 {
		if last, err = w.Jiffies(); err != nil {
			t.Fatal(err)
		}
	}
	took, want := time.Since(start), tick.Duration/4
	if took < want*9/10 || took > want*2 {
		t.Errorf("a quarter of a tick takes %v, want %v", took, want)
	}
}

// The cost of a pass that finds nothing to delete.
func BenchmarkEachFlow(b *testing.B) {
	for _, n := range []int{0, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			benchmarkEachFlow(b, n)
		})
	}
}

func benchmarkEachFlow(b *testing.B, n int) {
	rig.Root(b)
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "ct", Type: ebpf.Hash, KeySize: 40, ValueSize: 64, MaxEntries: uint32(max(131072, n+n/3)), Flags: unix.BPF_F_NO_PREALLOC,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	keys, rows := make([]maps.Flow, n), make([]maps.FlowRow, n)
	for i := range n {
		d := pair(i/2, unix.IPPROTO_TCP)
		keys[i], rows[i] = d.Request, rowTo(d.Reply)
		if i%2 == 1 {
			keys[i], rows[i] = d.Reply, rowTo(d.Request)
		}
	}
	if n > 0 {
		if _, err := m.BatchUpdate(keys, rows, nil); err != nil {
			b.Fatal(err)
		}
	}
	var buffer maps.FlowBuffer
	var before, after unix.Rusage
	b.ReportAllocs()
	b.ResetTimer()
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	for b.Loop() {
		seen := 0
		if err := maps.EachFlow(m, &buffer, func(keys []maps.Flow, _ []maps.FlowRow) error { seen += len(keys); return nil }); err != nil || seen != n {
			b.Fatal(seen, err)
		}
	}
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	b.ReportMetric(float64(after.Utime.Nano()-before.Utime.Nano())/float64(b.N)/1e6, "user-ms/op")
	b.ReportMetric(float64(after.Stime.Nano()-before.Stime.Nano())/float64(b.N)/1e6, "sys-ms/op")
}
