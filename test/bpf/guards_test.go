package bpf

import (
	"errors"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
)

// setRangeEpoch has the programs believe that source ranges of load balancers last changed in a tick.
func (w *bareNode) setRangeEpoch(t *testing.T, changed uint32) {
	t.Helper()
	if err := w.maps.RangeEpochs.Put(uint32(0), maps.RangeEpoch{Changed: changed}); err != nil {
		t.Fatal(err)
	}
}

// guardCase says when something happened, in ticks from now, and whether the programs then look for
// a packet's client in the ranges.
type guardCase struct {
	name                 string
	seen, changed, until int32
	checked              bool
}

func guardCases() []guardCase {
	return []guardCase{
		{"nothing changed since", -1, -2, 3, false},
		{"nothing changed for long", -1, -1 << 30, 3, false},
		{"not used for long, and nothing changed", -1 << 20, -1<<20 - 1, 3, false},
		{"changed in the tick in which it was used", -1, -1, 3, true},
		{"changed since", -5, -1, 3, true},
		{"changed since, and it is not used for long", -1 << 20, -1 << 19, 3, true},
		{"changed now", -1, 0, 3, true},
		{"changed, and the clock may go on meanwhile", -1, 1, 3, true},
		{"a change is under way", -1, 1 << 30, 3, true},
		{"a change is under way for long, and it is not used for long", -1 << 20, 1<<30 - 1<<20, 3, true},
		{"changed, but it was judged in this tick", 0, 1, 3, false},
		{"the lease holds for this tick and no more", -1, -2, 0, false},
		{"the agent is away since a moment", -1, -2, -1, true},
		{"the agent is away for long", -1, -1 << 20, -1 << 20, true},
		{"the agent is away, but it was judged in this tick", 0, -2, -1, false},
		// The tick number is small in this test, so these are on both sides of zero.
		{"used before the clock went round", -3, -1, 3, true},
		{"changed and used before the clock went round", -3, -4, 3, false},
	}
}

// guardedEnd is one direction of a flow to a load balancer's address, with its row.
type guardedEnd struct {
	name    string
	program string
	packet
	row bpf.MapsCtEntry
}

// guardedEnds returns those of flows to a backend on another node and on this one, on the short
// path and on the long one.
func (w *bareNode) guardedEnds(f family) (list []guardedEnd) {
	client, vip, pod, snat := f.client+":4000", guardedIn(f).vip+":53", f.pod+":53", f.snat+":61000"
	add := func(name, program, from, to string, row bpf.MapsCtEntry, flags uint8) {
		if program == "" {
			return
		}
		row.Kind |= maps.FlowHasRanges | flags
		if maps.FlowKindOf(flags) != maps.FlowLocal {
			row.Ifindex, row.Dmac = 1, [6]uint8{2, 0, 0, 0, 0, 1}
		}
		p := packet{from: from, to: to, proto: udp}
		list = append(list, guardedEnd{name, program, p, row})
		if p.extension = make([]byte, 8); f.any == "0.0.0.0" {
			p.extension, p.options = nil, 2
		}
		list = append(list, guardedEnd{name + ", the slow path", program, p, row})
	}
	add("a request", w.in, client, vip, rowOf(snat, pod, false), 0)
	add("an answer", w.in, pod, snat, rowOf(vip, client, true), 0)
	add("a request to this node", w.in, client, vip, rowOf(client, pod, false), uint8(maps.FlowLocal))
	add("an answer of this node", w.out, pod, client, rowOf(vip, client, true), uint8(maps.FlowLocal))
	for _, m := range wrappings() {
		row := rowOf(snat, pod, false)
		add("begun by "+m.name, w.in, client, vip, row, uint8(maps.FlowDSR)+m.mode)
		row.State = uint8(bpf.MapsCtStateCT_OPEN)
		add("a request by "+m.name, w.in, client, vip, row, uint8(maps.FlowDSR)+m.mode)
	}
	return list
}

// The programs look for a client in the ranges with the first packet of a tick, unless the agent
// has renewed its lease on the ranges since the previous packet. While the flow is not
// established they look with every packet, except for a flow whose backend answers directly, once
// the client has sent more.
func TestRangesAreChecked(t *testing.T) {
	config := standardConfig()
	config.TickShift = 31
	eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
		w.service(t, guardedIn(f).vip+":53", udp, maps.LoadBalancer, f.pod+":53", false)
		w.guard(t, guardedIn(f).elsewhere)
		now := w.tick(t, f.client+":1", f.node+":1")
		for _, end := range w.guardedEnds(f) {
			for _, tt := range guardCases() {
				w.setRouteEpoch(t, now-1<<20-9, now+uint32(tt.until))
				w.setRangeEpoch(t, now+uint32(tt.changed))
				for _, m := range []*ebpf.Map{w.maps.Ct, w.maps.CtPending} {
					half, direct := m == w.maps.CtPending, maps.FlowKindOf(end.row.Kind).IsDSR()
					if direct && !half {
						continue // it has no row there
					}
					want := tt.checked || half && (!direct || end.row.State < uint8(bpf.MapsCtStateCT_OPEN))
					row := end.row
					row.Seen = now + uint32(tt.seen)
					if cut := w.cuts(t, m, end, row); cut != want {
						t.Errorf("%s, %s (half open: %v): cut off: %v, want %v", end.name, tt.name, half, cut, want)
					}
				}
			}
		}
	})
}

// cuts reports whether a packet ended its flow because its client is in no range.
func (w *bareNode) cuts(t *testing.T, m *ebpf.Map, end guardedEnd, row bpf.MapsCtEntry) bool {
	t.Helper()
	w.empty(t)
	flow := flowOf(end.from, end.to, end.proto)
	w.plant(t, m, flow, row)
	before := w.countedAt(t, w.hook.name, "source-range")
	verdict, _ := w.run(t, end.program, end.bytes())
	known := m.Lookup(&flow, &row) == nil
	counted := w.countedAt(t, w.hook.name, "source-range") - before
	if cut := verdict == "drop"; cut == known || counted > 1 || cut != (counted == 1) {
		t.Errorf("%s: %s, the row is there: %v, counted %d times", end.name, verdict, known, counted)
	}
	return !known
}

// watchman is the part of an agent that tells the programs of changes.
type watchman struct {
	*bareNode
	ways        *ticks.RouteEpoch
	rangeEpochs *ticks.RangeEpochs
	end         guardedEnd
}

func (w *bareNode) watchman(t *testing.T, f family) *watchman {
	t.Helper()
	ways, err := ticks.NewRouteEpoch(w.maps)
	if err != nil {
		t.Fatal(err)
	}
	rangeEpochs, err := ticks.NewRangeEpochs(w.maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ways.Close(), rangeEpochs.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := ways.Changed(); err != nil {
		t.Fatal(err)
	}
	m := &watchman{w, ways, rangeEpochs, w.guardedEnds(f)[0]}
	w.plant(t, w.maps.Ct, flowOf(m.end.from, m.end.to, udp), m.end.row)
	return m
}

// use keeps using the flow for this many ticks, with the agent running, and reports whether its row
// is still there then.
func (m *watchman) use(t *testing.T, ticks uint32) bool {
	t.Helper()
	flow := flowOf(m.end.from, m.end.to, udp)
	var first, row bpf.MapsCtEntry
	for late := time.Now().Add(time.Minute); row.Seen-first.Seen < ticks; time.Sleep(10 * time.Millisecond) {
		if err := m.ways.Renew(); err != nil {
			t.Fatal(err)
		}
		m.run(t, m.in, m.end.bytes())
		if m.maps.Ct.Lookup(&flow, &row) != nil {
			return false
		}
		if first.Seen == 0 {
			first = row
		}
		if time.Now().After(late) {
			t.Fatal("the clock stands still")
		}
	}
	return true
}

// The programs go by what the agent says of changes: before one, while it is under way, and after
// it.
func TestRangeEpochsOfTheAgent(t *testing.T) {
	tick, err := ticks.Measure()
	if err != nil {
		t.Fatal(err)
	}
	config := standardConfig()
	config.TickShift = uint16(tick.Shift)
	eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
		if (f.any == "0.0.0.0") != (w.hook.name == "tc") {
			return // this takes seconds, and the agent tells both families at once
		}
		w.service(t, guardedIn(f).vip+":53", udp, maps.LoadBalancer, f.pod+":53", false)
		for _, change := range []string{"under way", "over"} {
			w.guard(t, guardedIn(f).around)
			m := w.watchman(t, f)
			if err := m.rangeEpochs.End(); err != nil {
				t.Fatal(err)
			}
			if !m.use(t, 2) {
				t.Fatal("the flow of a client in the ranges is cut off")
			}
			w.guard(t, guardedIn(f).elsewhere)
			if !m.use(t, 1) {
				t.Error("the programs follow a change that they were not told of, so this test shows nothing")
			}
			if m.rangeEpochs.Begin(); change == "over" {
				if err := m.rangeEpochs.End(); err != nil {
					t.Fatal(err)
				}
			}
			if m.use(t, 2) {
				t.Errorf("a change that is %s: the flow is not cut off", change)
			}
		}
	})
}
