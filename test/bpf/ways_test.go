package bpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// waysCase says when something happened, in ticks from now, and whether a packet then asks for the
// way of its flow.
type waysCase struct {
	name                 string
	seen, changed, until int32
	incomplete           bool
	asks                 bool
}

func waysCases() []waysCase {
	return []waysCase{
		{name: "nothing changed since", seen: -1, changed: -2, until: 3},
		{name: "nothing changed for long", seen: -1, changed: -1 << 30, until: 3},
		{name: "not used for long, and nothing changed", seen: -1 << 20, changed: -1<<20 - 1, until: 3},
		{name: "changed in the tick in which it was used", seen: -1, changed: -1, until: 3, asks: true},
		{name: "changed since", seen: -5, changed: -1, until: 3, asks: true},
		{name: "changed now", seen: -1, changed: 0, until: 3, asks: true},
		{name: "changed, and the kernel may still be at it", seen: -1, changed: 1, until: 3, asks: true},
		{name: "changed, but it has asked in this tick", seen: 0, changed: 1, until: 3},
		{name: "the lease holds for this tick and no more", seen: -1, changed: -2, until: 0},
		{name: "the agent is away since a moment", seen: -1, changed: -2, until: -1, asks: true},
		{name: "the agent is away for long", seen: -1, changed: -1 << 20, until: -1 << 20, asks: true},
		{name: "the agent is away, but it has asked in this tick", seen: 0, changed: -2, until: -1},
		{name: "the neighbor is not known", seen: -1, changed: -2, until: 3, incomplete: true, asks: true},
		// The tick number is small in this test, so these are on both sides of zero.
		{name: "used before the clock went round", seen: -3, changed: -1, until: 3, asks: true},
		{name: "changed and used before the clock went round", seen: -3, changed: -4, until: 3},
	}
}

// The first packet of a flow in a tick asks for the flow's way, if that may have changed. The node
// of this test has no route, so a row that has asked has no device any more.
func TestWaysAreAskedFor(t *testing.T) {
	rig.Root(t)
	config := standardConfig()
	config.TickShift = 31
	for _, h := range hooks() {
		for version, f := range families() {
			t.Run(h.name+" "+version, func(t *testing.T) {
				w := newBareNodeOf(t, h, config)
				p := packet{from: f.client + ":4000", to: f.node + ":30053", proto: udp}
				row := rowOf(f.snat+":61000", f.pod+":53", false)
				now := w.tick(t, p.from, p.to)
				for _, half := range []bool{false, true} {
					for _, tt := range waysCases() {
						m := map[bool]*ebpf.Map{false: w.maps.Ct, true: w.maps.CtPending}[half]
						w.setRouteEpoch(t, now+uint32(tt.changed), now+uint32(tt.until))
						if asked := w.asks(t, m, p, tt.row(row, now)); asked != tt.asks {
							t.Errorf("%s (half open: %v): asked is %v, want %v", tt.name, half, asked, tt.asks)
						}
					}
				}
			})
		}
	}
}

// row returns a row with what asking for its way would change.
func (c waysCase) row(row bpf.MapsCtEntry, now uint32) bpf.MapsCtEntry {
	row.Smac, row.Seen = [6]uint8{2, 0, 0, 0, 0, 2}, now+uint32(c.seen)
	if !c.incomplete {
		row.Ifindex, row.Dmac = 1, [6]uint8{2, 0, 0, 0, 0, 1}
	}
	return row
}

// asks runs a packet whose flow has a row, and reports whether it asked for the way.
func (w *bareNode) asks(t *testing.T, m *ebpf.Map, p packet, row bpf.MapsCtEntry) bool {
	t.Helper()
	flow := flowOf(p.from, p.to, p.proto)
	w.plant(t, m, flow, row)
	frame := p.bytes()
	if w.name == "xdp" { // XDP ignores packets that are not for its device
		copy(frame, row.Smac[:])
		if err := w.maps.SetDeviceMacs(map[uint32][6]byte{1: row.Smac}); err != nil {
			t.Fatal(err)
		}
	}
	w.run(t, w.in, frame)
	after := row
	if err := m.Lookup(&flow, &after); err != nil {
		t.Fatal(err)
	}
	if err := m.Delete(&flow); err != nil {
		t.Fatal(err)
	}
	if after.Checksum != maps.ChecksumOf(flow, after) {
		t.Errorf("the row has the checksum %#x, want %#x", after.Checksum, maps.ChecksumOf(flow, after))
	}
	return after.Smac != row.Smac
}
