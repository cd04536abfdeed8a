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

// enterKept enters datagrams that the programs pass to the stack, which translates them to a backend.
func (w *world) enterKept(client, backend string) maps.Flow {
	const dialled = "192.0.2.1:53"
	key := w.enter(false, client, dialled, model.UDP, maps.FlowOpen)
	to := netip.MustParseAddrPort(backend)
	w.records[key] = maps.PeerOf(maps.SockPeer{
		Vip: key.Daddr, VipPort: key.Dport, Backend: maps.AddrOf(to.Addr()), BackendPort: maps.PortOf(to.Port()),
	}, model.UDP)
	return key
}

// Datagrams that the stack translates are forgotten when its record of them is gone, and no sooner while they go on: nobody else knows
// where they go. Rows that are alike without a record are of backends with the frontend's own address.
func TestKept(t *testing.T) {
	w := newWorld()
	goes, stays := w.enterKept("198.51.100.1:4000", "10.1.0.1:53"), w.enterKept("198.51.100.2:4000", "10.1.0.1:53")
	own := w.enter(false, "198.51.100.3:4000", "192.0.2.1:53", model.UDP, maps.FlowOpen)
	check := func(when string, has bool) {
		t.Helper()
		w.pass(t.Context())
		if w.has(false, goes) != has || !w.has(false, stays) || !w.has(false, own) {
			t.Errorf("%s: the rows are %t, %t and %t", when, w.has(false, goes), w.has(false, stays), w.has(false, own))
		}
	}
	check("with records", true)
	delete(w.records, goes)
	w.cannot = errors.New("no records")
	check("when nobody knows", true)
	if w.Stats().LastError == "" {
		t.Error("nobody is told that records cannot be read")
	}
	w.cannot = nil
	check("without a record", false)
	if w.interval != soonest {
		t.Errorf("the next look is in %v", w.interval)
	}
}

// They are forgotten with the backend that the record names, and not because nobody serves what they are addressed to.
func TestKeptPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		goes, stays := w.enterKept("198.51.100.1:4000", "10.1.0.1:53"), w.enterKept("198.51.100.2:4000", "10.1.0.2:53")
		w.gone[netip.MustParseAddrPort("10.1.0.1:53")] = true
		w.gone[netip.MustParseAddrPort("192.0.2.1:53")] = true
		w.run(t, func() {
			w.Left(model.UDP)
			time.Sleep(time.Second)
			synctest.Wait()
			if w.has(false, goes) || !w.has(false, stays) {
				t.Errorf("the rows are %t and %t", w.has(false, goes), w.has(false, stays))
			}
		})
	})
}
