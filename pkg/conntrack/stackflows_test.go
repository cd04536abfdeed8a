package conntrack

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// addStackFlow adds a UDP flow that the programs pass to the stack, which translates it to a backend.
func (w *memoryCollector) enterKept(client, backend string) maps.Flow {
	const dialed = "192.0.2.1:53"
	key := w.enter(false, client, dialed, model.UDP, maps.FlowOpen)
	to := netip.MustParseAddrPort(backend)
	w.records[key] = maps.OriginOf(maps.SockOrigin{
		Vip: key.Daddr, VipPort: key.Dport, Backend: maps.AddrOf(to.Addr()), BackendPort: maps.PortOf(to.Port()),
	}, model.UDP)
	return key
}

// A UDP flow that the stack translates is deleted once the stack's entry is gone, but not while
// entries cannot be read: nothing else tells where its packets go. A row that looks the same but
// never had an entry belongs to a backend with the frontend's own address, and stays.
func TestStackFlows(t *testing.T) {
	w := newMemoryCollector()
	goes, stays := w.enterKept("198.51.100.1:4000", "10.1.0.1:53"), w.enterKept("198.51.100.2:4000", "10.1.0.1:53")
	own := w.enter(false, "198.51.100.3:4000", "192.0.2.1:53", model.UDP, maps.FlowOpen)
	check := func(when string, has bool) {
		t.Helper()
		w.pass(t.Context())
		if w.has(false, goes) != has || !w.has(false, stays) || !w.has(false, own) {
			t.Errorf("%s: rows exist: %t, %t and %t", when, w.has(false, goes), w.has(false, stays), w.has(false, own))
		}
	}
	check("with entries", true)
	delete(w.records, goes)
	w.cannot = errors.New("no records")
	check("while entries cannot be read", true)
	if w.Stats().LastError == "" {
		t.Error("the stats don't say that entries cannot be read")
	}
	w.cannot = nil
	check("without an entry", false)
	if w.interval != soonest {
		t.Errorf("the next pass is in %v", w.interval)
	}
}

// Such a flow is deleted once the backend that the stack's entry names is gone, even if nothing
// serves the address it is sent to.
func TestStackFlowsPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryCollector()
		goes, stays := w.enterKept("198.51.100.1:4000", "10.1.0.1:53"), w.enterKept("198.51.100.2:4000", "10.1.0.2:53")
		w.gone[netip.MustParseAddrPort("10.1.0.1:53")] = true
		w.gone[netip.MustParseAddrPort("192.0.2.1:53")] = true
		w.run(t, func() {
			w.Left(model.UDP)
			time.Sleep(time.Second)
			synctest.Wait()
			if w.has(false, goes) || !w.has(false, stays) {
				t.Errorf("rows exist: %t and %t, want false and true", w.has(false, goes), w.has(false, stays))
			}
		})
	})
}
