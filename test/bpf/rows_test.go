package bpf

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
)

// readTimeout is how long to wait for a frame that must come.
const readTimeout = 5 * time.Second

// row returns the established row of a flow.
func (w *bareNode) row(t *testing.T, from, to string, proto byte) (bpf.MapsCtEntry, bool) {
	t.Helper()
	var row bpf.MapsCtEntry
	key := flowOf(from, to, proto)
	err := w.maps.Ct.Lookup(&key, &row)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return row, err == nil
}

// rowOf returns a row that rewrites packets to a flow; tests set the rest.
func rowOf(from, to string, reply bool) bpf.MapsCtEntry {
	flow := flowOf(from, to, 0)
	row := bpf.MapsCtEntry{Saddr: flow.Saddr, Daddr: flow.Daddr, Sport: flow.Sport, Dport: flow.Dport}
	if reply {
		row.Kind = maps.FlowReply
	}
	return row
}

// plant writes a row with its checksum, as the programs make it.
func (w *bareNode) plant(t *testing.T, m *ebpf.Map, key bpf.MapsFlow, row bpf.MapsCtEntry) {
	t.Helper()
	row.Checksum = maps.ChecksumOf(key, row)
	if err := m.Put(&key, &row); err != nil {
		t.Fatal(err)
	}
}

// countedAt returns how often any hook counted a reason.
func (w *bareNode) countedAt(t *testing.T, hook, reason string) uint64 {
	t.Helper()
	list, err := reasons.ReadCounters(w.maps.Counters)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Hook == hook && c.Reason == reason {
			return c.Packets
		}
	}
	t.Fatalf("there is no reason %s at %s", reason, hook)
	return 0
}

// inTime calls happened until it is true, and fails if that takes seconds: the kernel's jiffies
// must advance.
func (s *routerNode) inTime(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for began := time.Now(); !happened(); {
		if time.Since(began) > readTimeout {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// routeBack gives the far end a route to an address of the node.
func (w *wire) routeBack(t *testing.T, addr string) {
	t.Helper()
	ip := netip.MustParseAddr(strings.Trim(addr, "[]"))
	err := w.handle.RouteAdd(&netlink.Route{LinkIndex: w.end.Attrs().Index, Scope: netlink.SCOPE_LINK,
		Dst: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}})
	if err != nil {
		t.Fatal(err)
	}
}

// setMTU changes how large the packets that the node sends on the wire may be.
func (w *wire) setMTU(t *testing.T, mtu int) {
	t.Helper()
	if err := w.router.node.LinkSetMTU(w.near, mtu); err != nil {
		t.Fatal(err)
	}
}
