package conntrack

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// memory implements Flows in memory, with jiffies as ticks. It judges as the programs do, in less
// detail.
type memory struct {
	mu   sync.Mutex // guards what a test changes while the Collector runs
	now  uint32
	rows [2]map[maps.Flow]maps.FlowRow
	err  error

	walks  int
	room   int // for established flows; 0 means 1000
	opened uint64
}

func newMemory() *memory {
	return &memory{now: 1 << 20, rows: [2]map[maps.Flow]maps.FlowRow{{}, {}}}
}

func index(half bool) int {
	if half {
		return 1
	}
	return 0
}

func (m *memory) Capacity(half bool) int {
	if !half && m.room > 0 {
		return m.room
	}
	return 1000
}

func (m *memory) Opened() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opened, nil
}

func (m *memory) Jiffies() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint64(m.now), m.err
}

// set changes something while the Collector runs.
func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *memory) Each(half bool, visit func([]maps.Flow, []maps.FlowRow) error) error {
	m.walks++
	var keys []maps.Flow
	var rows []maps.FlowRow
	for key, row := range m.rows[index(half)] {
		keys, rows = append(keys, key), append(rows, row)
	}
	return visit(keys, rows)
}

func (m *memory) Collect(half bool, _ uint32, limits *maps.FlowLimits, list []maps.Doomed) error {
	rows := m.rows[index(half)]
	for i := range list {
		d := &list[i]
		request, there := rows[d.Request]
		reply, back := rows[d.Reply]
		if !there && !back {
			continue
		}
		idle := m.now - max(request.Seen, reply.Seen)
		phase := maps.PhaseOpen
		for _, row := range []maps.FlowRow{request, reply} {
			if row.State == maps.FlowClosing {
				phase++
			}
		}
		if request.State == maps.FlowReset {
			phase = maps.PhaseReset
		}
		if half {
			phase = maps.PhaseHalfOpen
		}
		if d.Why == maps.DoomIdle && idle < limits[classOf(d.Request.Proto)][phase] {
			continue
		}
		delete(rows, d.Request)
		delete(rows, d.Reply)
		d.Outcome = maps.DoomDeleted
	}
	return nil
}

// enter adds a flow from client to backend and returns the key of its request.
func (m *memory) enter(half bool, client, backend string, proto model.Protocol, state uint8) maps.Flow {
	from, to, vip := netip.MustParseAddrPort(client), netip.MustParseAddrPort(backend), netip.MustParseAddrPort("192.0.2.1:53")
	key := maps.Flow{
		Saddr: maps.AddrOf(from.Addr()), Sport: maps.PortOf(from.Port()), Daddr: maps.AddrOf(vip.Addr()), Dport: maps.PortOf(vip.Port()),
		Proto: uint8(proto),
	}
	row := maps.FlowRow{Saddr: key.Saddr, Sport: key.Sport, Daddr: maps.AddrOf(to.Addr()), Dport: maps.PortOf(to.Port()), Seen: m.now, State: state}
	back := maps.FlowRow{
		Saddr: key.Daddr, Sport: key.Dport, Daddr: key.Saddr, Dport: key.Sport, Seen: m.now, State: state, Kind: maps.FlowReply,
	}
	m.rows[index(half)][key] = row
	m.rows[index(half)][maps.BackOf(key, &row)] = back
	return key
}

func (m *memory) has(half bool, key maps.Flow) bool {
	_, ok := m.rows[index(half)][key]
	return ok
}

// memoryCollector is a Collector over a memory, some of whose backends are gone.
type memoryCollector struct {
	*memory
	*Collector
	gone  map[netip.AddrPort]bool
	asked int
	fails error

	records map[maps.Flow]maps.Origin // conntrack entries of the stack
	cannot  error                     // error of reading them
}

func newMemoryCollector() *memoryCollector {
	w := &memoryCollector{memory: newMemory(), gone: map[netip.AddrPort]bool{}, records: map[maps.Flow]maps.Origin{}}
	w.Collector = NewCollector(Config{
		Flows: w.memory,
		Clock: Clock{Duration: time.Second},
		Timeouts: Timeouts{
			TCPEstablished: 8000 * time.Second, TCPHalfClosed: time.Hour, TCPClosing: time.Minute, TCPReset: 10 * time.Second, TCPHalfOpen: 30 * time.Second,
			UDPStream: 120 * time.Second, UDP: 30 * time.Second, SCTPEstablished: 210 * time.Second, SCTPClosing: 11 * time.Second,
		},
		Stale: w.stale,
		StackEntry: func(flow maps.Flow) (maps.Origin, bool, error) {
			origin, ok := w.records[flow]
			return origin, ok, w.cannot
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return w
}

func (w *memoryCollector) stale(_ context.Context, origins []maps.Origin) ([]bool, error) {
	w.memory.mu.Lock()
	defer w.memory.mu.Unlock()
	w.asked++
	answer := make([]bool, len(origins))
	for i, p := range origins {
		answer[i] = w.gone[netip.AddrPortFrom(maps.NetipOf(p.Backend.Addr), maps.PortOf(p.Backend.Port))]
	}
	return answer, w.fails
}

// run runs the Collector while scene lasts, in synctest's time.
func (w *memoryCollector) run(t *testing.T, scene func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	synctest.Wait()
	scene()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A flow is deleted once it has been idle for its timeout, and its rows are counted.
func TestTimeouts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		half  bool
		proto model.Protocol
		state uint8
		after uint32 // seconds it lives
	}{
		{"tcp", false, model.TCP, maps.FlowOpen, 8000},
		{"tcp, closed", false, model.TCP, maps.FlowClosing, 60},
		{"tcp, reset", false, model.TCP, maps.FlowReset, 10},
		{"tcp, half open", true, model.TCP, maps.FlowNew, 30},
		{"udp", false, model.UDP, maps.FlowOpen, 120},
		{"udp, one way", true, model.UDP, maps.FlowNew, 30},
		{"sctp", false, model.SCTP, maps.FlowOpen, 210},
		{"sctp, shut down", false, model.SCTP, maps.FlowClosing, 11},
		{"sctp, aborted", false, model.SCTP, maps.FlowReset, 11},
		{"sctp, half open", true, model.SCTP, maps.FlowNew, 30},
	} {
		w := newMemoryCollector()
		key := w.enter(tt.half, "198.51.100.1:4000", "10.1.0.1:53", tt.proto, tt.state)
		w.now += tt.after
		w.pass(t.Context())
		if !w.has(tt.half, key) {
			t.Errorf("%s: deleted too early", tt.name)
		}
		w.now++
		w.pass(t.Context())
		if w.has(tt.half, key) || len(w.rows[index(tt.half)]) > 0 {
			t.Errorf("%s: not deleted", tt.name)
		}
		if stats := w.Stats(); stats.Idle != 1 || stats.Rows[index(tt.half)] != 2 || stats.Passes != 2 {
			t.Errorf("%s: counts are %+v", tt.name, stats)
		}
	}
}

// Packets in one direction keep both rows.
func TestOtherDirection(t *testing.T) {
	w := newMemoryCollector()
	key := w.enter(false, "198.51.100.1:4000", "10.1.0.1:53", model.UDP, maps.FlowOpen)
	request := w.rows[0][key]
	w.now += 500
	request.Seen = w.now
	w.rows[0][key] = request
	w.pass(t.Context())
	if len(w.rows[0]) != 2 {
		t.Errorf("%d rows are left", len(w.rows[0]))
	}
}

// Within a second of a backend's end the Collector purges its UDP flows and those whose first
// packet was not answered, but no TCP connection and nothing of a backend with the same address and
// another port.
func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryCollector()
		w.gone[netip.MustParseAddrPort("10.1.0.1:53")] = true
		flows := []struct {
			name    string
			half    bool
			backend string
			proto   model.Protocol
			state   uint8
			stays   bool
		}{
			{"datagrams", false, "10.1.0.1:53", model.UDP, maps.FlowOpen, false},
			{"datagrams, one way", true, "10.1.0.1:53", model.UDP, maps.FlowNew, false},
			{"datagrams, answered", true, "10.1.0.1:53", model.UDP, maps.FlowAnswered, false},
			{"another port", false, "10.1.0.1:54", model.UDP, maps.FlowOpen, true},
			{"another address", true, "10.1.0.2:53", model.UDP, maps.FlowNew, true},
			{"connection", false, "10.1.0.1:53", model.TCP, maps.FlowOpen, true},
			{"connection that closes", false, "10.1.0.1:53", model.TCP, maps.FlowClosing, true},
			{"connection, answered", true, "10.1.0.1:53", model.TCP, maps.FlowAnswered, true},
			{"connection, not answered", true, "10.1.0.1:53", model.TCP, maps.FlowNew, false},
		}
		keys := map[string]maps.Flow{}
		for i, f := range flows {
			client := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), uint16(4000+i)).String()
			keys[f.name] = w.enter(f.half, client, f.backend, f.proto, f.state)
		}
		// What pods sent to the outside, to an address that once was a backend's.
		pods := map[bool]maps.Flow{}
		for i, half := range []bool{false, true} {
			key := w.enter(half, netip.AddrPortFrom(netip.MustParseAddr("10.1.0.9"), uint16(5000+i)).String(), "10.1.0.1:53", model.UDP, maps.FlowOpen)
			row := w.rows[index(half)][key]
			row.Kind |= uint8(maps.FlowMasqueraded)
			w.rows[index(half)][key], pods[half] = row, key
		}
		// What the node sent to a service.
		node := w.enter(false, "10.1.0.9:6000", "10.1.0.1:53", model.UDP, maps.FlowOpen)
		row := w.rows[index(false)][node]
		row.Kind |= uint8(maps.FlowHost)
		w.rows[index(false)][node] = row
		w.run(t, func() {
			w.Left(model.UDP)
			time.Sleep(time.Second)
			synctest.Wait()
			if w.has(false, node) {
				t.Error("the node's flow to a service is still there")
			}
			for _, f := range flows {
				if w.has(f.half, keys[f.name]) != f.stays {
					t.Errorf("%s: stays is %t, want %t", f.name, !f.stays, f.stays)
				}
			}
			for half, key := range pods {
				if !w.has(half, key) {
					t.Errorf("a pod's flow to the outside is deleted, half open: %t", half)
				}
			}
			if stats := w.Stats(); stats.Stale != 5 {
				t.Errorf("%d flows were purged", stats.Stale)
			}
		})
	})
}

// Many changes at one time cause one purge, and if no backend is gone the rows are scanned once.
func TestPurgeIsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryCollector()
		w.enter(false, "198.51.100.1:4000", "10.1.0.1:53", model.UDP, maps.FlowOpen)
		w.run(t, func() {
			for range 50 {
				w.Left(model.UDP)
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if w.walks != 2 || w.asked != 1 {
				t.Errorf("scanned %d maps and called Stale %d times, want 2 and 1", w.walks, w.asked)
			}
		})
	})
}

// A backend that is back a moment later keeps its flows.
func TestPurgeBelieves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryCollector()
		at := netip.MustParseAddrPort("10.1.0.1:53")
		key := w.enter(false, "198.51.100.1:4000", at.String(), model.UDP, maps.FlowOpen)
		w.gone[at] = true
		w.run(t, func() {
			w.Left(model.UDP)
			time.Sleep(gather + believe/2)
			w.set(func() { w.gone[at] = false })
			time.Sleep(time.Second)
			synctest.Wait()
			if !w.has(false, key) || w.asked != 2 {
				t.Errorf("the flow is deleted, or Stale was called %d times, want 2", w.asked)
			}
		})
	})
}

// Even if Left is never called, the flows of a lost backend are deleted within two minutes.
func TestPurgeByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryCollector()
		at := netip.MustParseAddrPort("10.1.0.1:53")
		key := w.enter(false, "198.51.100.1:4000", at.String(), model.UDP, maps.FlowOpen)
		w.gone[at] = true
		w.run(t, func() {
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if w.has(false, key) {
				t.Error("the flow is still there")
			}
		})
	})
}

// The Collector waits longer where there is little to do, and less where the map is crowded or many
// flows end.
func TestInterval(t *testing.T) {
	for _, tt := range []struct {
		name        string
		from        time.Duration
		rows        int
		deleted     int
		took        time.Duration
		want        time.Duration
		pendingRows int
	}{
		{"nothing there", time.Minute, 0, 0, 0, time.Minute, 0},
		{"nothing to do", 20 * time.Second, 100, 0, 0, 30 * time.Second, 0},
		{"some to do", 20 * time.Second, 100, 2, 0, 20 * time.Second, 0},
		{"much to do", 20 * time.Second, 100, 20, 0, 10 * time.Second, 0},
		{"never too soon", 6 * time.Second, 100, 50, 0, 5 * time.Second, 0},
		{"crowded", time.Minute, 750, 0, 0, 5 * time.Second, 0},
		{"half as crowded", time.Minute, 375, 0, 0, 32500 * time.Millisecond, 0},
		{"more than crowded", time.Minute, 1000, 0, 0, 5 * time.Second, 0},
		{"crowded with half-open ones", time.Minute, 0, 0, 0, 5 * time.Second, 900},
		{"expensive", time.Minute, 1000, 500, time.Second, 50 * time.Second, 0},
	} {
		w := newMemoryCollector()
		w.interval = tt.from
		w.walk.tally.rows = [2]int{tt.rows, tt.pendingRows}
		w.walk.tally.deleted[maps.DoomIdle] = tt.deleted
		if have := w.next(tt.took); have != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, have, tt.want)
		}
	}
}

// An error is counted and the pass tried again; the numbers of rows stay as they were last known.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryCollector()
		w.enter(false, "198.51.100.1:4000", "10.1.0.1:53", model.TCP, maps.FlowOpen)
		w.run(t, func() {
			time.Sleep(2 * soonest)
			synctest.Wait()
			if s := w.Stats(); s.LastError != "" || s.Passes == 0 || s.Rows[0] != 2 {
				t.Errorf("before: %+v", s)
			}
			w.set(func() { w.err = errors.New("no rows") })
			time.Sleep(2 * latest)
			synctest.Wait()
			if s := w.Stats(); s.LastError != "read the programs' clock: no rows" || s.Rows[0] != 2 {
				t.Errorf("without rows: %+v", s)
			}
		})
	})
}
