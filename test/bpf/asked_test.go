package bpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// knows has every row of every CPU hold the way between two addresses, so that it does not matter
// in which row and on which CPU programs look.
func (w *bareNode) knows(t *testing.T, way bpf.MapsFibCacheRow) {
	t.Helper()
	rows := make([]bpf.MapsFibCacheRow, ebpf.MustPossibleCPU())
	for i := range rows {
		rows[i] = way
	}
	for i := range w.maps.FibCache.MaxEntries() {
		if err := w.maps.FibCache.Put(i, rows); err != nil {
			t.Fatal(err)
		}
	}
}

// wayOf returns the way from one address to another through the device that test packets come in
// through.
func wayOf(from, to string, seen uint32) bpf.MapsFibCacheRow {
	return bpf.MapsFibCacheRow{
		From: maps.AddrOf(netip.MustParseAddr(host(from))), To: maps.AddrOf(netip.MustParseAddr(host(to))), In: 1, Seen: seen,
		Ifindex: 1, Dmac: [6]uint8{2, 0, 0, 0, 0, 7}, Smac: [6]uint8{2, 0, 0, 0, 0, 8},
	}
}

// askedCase says when something happened, in ticks from now, and whether a new flow then takes a
// way that was looked up for another flow.
type askedCase struct {
	name                 string
	seen, changed, until int32
	other                func(f family, way *bpf.MapsFibCacheRow)
	taken                bool
}

func askedCases() []askedCase {
	return []askedCase{
		{name: "asked in this tick", changed: -1, until: 1, taken: true},
		{name: "asked before, and nothing changed since", seen: -3, changed: -4, until: 1, taken: true},
		{name: "the lease holds for this tick and no more", changed: -1, taken: true},
		{name: "changed in the tick in which it was asked", seen: -3, changed: -3, until: 1},
		{name: "changed since", seen: -3, changed: -1, until: 1},
		{name: "changed now", until: 1},
		{name: "changed, and the kernel may still be at it", changed: 1, until: 1},
		{name: "the agent is away", changed: -1, until: -1},
		{name: "half written", changed: -1, until: 1, other: func(_ family, way *bpf.MapsFibCacheRow) { way.Turn = 1 }},
		{name: "written often", changed: -1, until: 1, taken: true, other: func(_ family, way *bpf.MapsFibCacheRow) { way.Turn = 8 }},
		{name: "by another device", changed: -1, until: 1, other: func(_ family, way *bpf.MapsFibCacheRow) { way.In = 2 }},
		{name: "from another address", changed: -1, until: 1, other: func(f family, way *bpf.MapsFibCacheRow) {
			way.From = maps.AddrOf(netip.MustParseAddr(host(f.node)))
		}},
		{name: "to another address", changed: -1, until: 1, other: func(f family, way *bpf.MapsFibCacheRow) {
			way.To = maps.AddrOf(netip.MustParseAddr(host(f.node)))
		}},
	}
}

// A flow takes a way that was looked up for another one as long as it is valid. The node of this
// test has no route, so a program that asks the kernel gets none.
func TestFibCache(t *testing.T) {
	rig.Root(t)
	config := standardConfig()
	config.TickShift, config.SnatFirst = 31, 40000
	for _, h := range hooks() {
		for version, f := range families() {
			t.Run(h.name+" "+version, func(t *testing.T) {
				w := newBareNodeOf(t, h, config)
				w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", false)
				now := w.tick(t, f.client+":4000", f.node+":30053")
				for i, tt := range askedCases() {
					way := wayOf(f.snat, f.pod, now+uint32(tt.seen))
					if tt.other != nil {
						tt.other(f, &way)
					}
					w.knows(t, way)
					w.setRouteEpoch(t, now+uint32(tt.changed), now+uint32(tt.until))
					row := w.begun(t, f, 5000+i)
					if taken := row.Dmac == way.Dmac && row.Smac == way.Smac && row.Ifindex == 1; taken != tt.taken {
						t.Errorf("%s: taken is %v, want %v: %+v", tt.name, taken, tt.taken, row)
					}
				}
			})
		}
	}
}

// begun begins a flow and returns the row of its request.
func (w *bareNode) begun(t *testing.T, f family, port int) bpf.MapsCtEntry {
	t.Helper()
	p := packet{from: fmt.Sprintf("%s:%d", f.client, port), to: f.node + ":30053", proto: udp}
	w.run(t, w.in, p.bytes())
	flow, row := flowOf(p.from, p.to, udp), bpf.MapsCtEntry{}
	if err := w.maps.CtPending.Lookup(&flow, &row); err != nil {
		t.Fatalf("find the row of a request from port %d: %v", port, err)
	}
	return row
}

// The kernel is asked once for many flows, and again after a change. The programs do not remember
// that there is no way, and while the agent does not renew the lease they ask the kernel for every flow.
func TestAskedOnce(t *testing.T) {
	rig.Root(t)
	config := standardConfig()
	config.TickShift, config.SnatFirst = 31, 40000
	for _, h := range hooks() {
		for version, f := range families() {
			t.Run(h.name+" "+version, func(t *testing.T) {
				w := newBareNodeOf(t, h, config)
				w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", false)
				reach := w.loop(t, f)
				now, port := w.tick(t, f.client+":4000", f.node+":30053"), 5000
				for _, step := range []struct {
					name           string
					known          bool // there is a route
					changed, until uint32
					want           bool
				}{
					{name: "without a route", changed: now - 1, until: now + 1},
					{name: "with one", known: true, changed: now - 1, until: now + 1, want: true},
					{name: "without it again, of which nobody has heard", changed: now - 1, until: now + 1, want: true},
					{name: "after that was told", changed: now, until: now + 1},
					{name: "while nobody renews", changed: now - 1, until: now - 1},
				} {
					reach(step.known)
					w.setRouteEpoch(t, step.changed, step.until)
					port++
					if row := w.begun(t, f, port); (row.Dmac != [6]uint8{}) != step.want {
						t.Errorf("%s: the row has a way: %v, want %v", step.name, !step.want, step.want)
					}
				}
			})
		}
	}
}

// loop gives the backend a neighbor behind loopback, and returns a function that adds or removes
// the route there.
func (w *bareNode) loop(t *testing.T, f family) (reach func(known bool)) {
	t.Helper()
	handle := handleOf(t, w.netns)
	lo, err := handle.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	pod := net.IP(netip.MustParseAddr(host(f.pod)).AsSlice())
	errs := []error{handle.LinkSetUp(lo), handle.NeighSet(&netlink.Neigh{
		LinkIndex: lo.Attrs().Index, IP: pod, State: netlink.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 3},
	})}
	for _, name := range []string{"net/ipv4/conf/lo/forwarding", "net/ipv6/conf/lo/forwarding"} {
		errs = append(errs, w.netns.SetSysctl(name, "1"))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	route := netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: pod, Mask: net.CIDRMask(8*len(pod), 8*len(pod))}}
	there := false
	return func(known bool) {
		t.Helper()
		var err error
		switch {
		case known && !there:
			err = handle.RouteAdd(&route)
		case !known && there:
			err = handle.RouteDel(&route)
		}
		if err != nil {
			t.Fatal(err)
		}
		there = known
	}
}
