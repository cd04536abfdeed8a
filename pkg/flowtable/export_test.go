package flowtable

import (
	"errors"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/netfilter"
	"fairlead.io/fairlead/pkg/ticks"
	"fairlead.io/fairlead/test/rig"
)

// served writes the rows of a connection as the programs do.
func served(t *testing.T, in *maps.Maps, c netfilter.Connection, state uint8) {
	t.Helper()
	m := in.Ct
	if state < maps.FlowOpen {
		m = in.CtPending
	}
	flow, to := flowOf(c), flowSeen(c)
	there := maps.FlowRow{Saddr: to.Saddr, Daddr: to.Daddr, Sport: to.Sport, Dport: to.Dport, State: state}
	reply := maps.BackOf(flow, &there)
	back := maps.FlowRow{Saddr: flow.Daddr, Daddr: flow.Saddr, Sport: flow.Dport, Dport: flow.Sport, State: state, Kind: maps.FlowReply}
	for _, r := range []stackRow{{reply, back}, {flow, there}} {
		now, err := mustTick(t).Now()
		if err != nil {
			t.Fatal(err)
		}
		r.row.Seen = now
		r.row.Checksum = maps.ChecksumOf(r.key, r.row)
		if err := m.Put(&r.key, &r.row); err != nil {
			t.Fatal(err)
		}
	}
}

func mustTick(t *testing.T) ticks.Tick {
	t.Helper()
	tick, err := ticks.Measure()
	if err != nil {
		t.Fatal(err)
	}
	return tick
}

// TestHandOver checks that established connections are handed over before the frontends are closed:
// from then on netfilter gives their ports to nobody, and the programs pass their packets, however
// long the rest takes. Those whose ports netfilter has given to others are counted, unless they are
// datagrams that were answered once.
func TestHandOver(t *testing.T) {
	m, dir := newPinned(t)
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "nft is missing: install nftables")
	}
	key := maps.KeyOf(netip.IPv4Unspecified(), 30001, model.TCP)
	if err := m.Svcs.Put(&key, &maps.Svc{Kind: maps.NodePort}); err != nil {
		t.Fatal(err)
	}
	of := func(port uint16, proto uint8) netfilter.Connection {
		return netfilter.Connection{
			Client: netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), port), Dialed: netip.MustParseAddrPort("192.0.2.1:30001"),
			Seen: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 10000+port), Server: netip.MustParseAddrPort("10.1.0.2:8080"),
			Proto: proto, Answered: true, Lasting: true,
		}
	}
	open, stream, opening, answered := of(1, unix.IPPROTO_TCP), of(2, unix.IPPROTO_UDP), of(3, unix.IPPROTO_TCP), of(4, unix.IPPROTO_UDP)
	late := of(5, unix.IPPROTO_TCP)
	served(t, m, open, maps.FlowOpen)
	served(t, m, stream, maps.FlowOpen)
	served(t, m, opening, maps.FlowNew) // for this one, Export waits
	served(t, m, answered, maps.FlowAnswered)
	served(t, m, late, maps.FlowOpen)
	another := func(c netfilter.Connection) netfilter.Connection {
		c.Client, c.Dialed = netip.MustParseAddrPort("192.0.2.1:50000"), netip.MustParseAddrPort("10.96.0.10:80")
		return c
	}
	n := rig.NewNetns(t, "node")
	in := func(fn func() error) {
		t.Helper()
		if err := n.Do(fn); err != nil {
			t.Fatal(err)
		}
	}
	in(func() error { return record([]netfilter.Connection{another(answered), another(late)}) })
	over := make(chan Exported, 1)
	go func() {
		var result Exported
		err := n.Do(func() error { result = Export(dir); return nil })
		result.Left = errors.Join(result.Left, err)
		over <- result
	}()
	// Until the frontend is closed; if it never is, Export still ends.
	for row := (maps.Svc{}); len(over) == 0 && m.Svcs.Lookup(&key, &row) == nil; {
		time.Sleep(time.Millisecond)
	}
	in(func() error {
		w, err := netfilter.NewWriter()
		if err != nil {
			return err
		}
		defer w.Close()
		for _, c := range []netfilter.Connection{open, stream} {
			if err := w.Add(another(c)); err != netfilter.ErrTaken {
				t.Errorf("with the frontends closed, another connection gets the port of %v: %v", c, err)
			}
			for _, flow := range []maps.Flow{flowOf(c), flowSeen(c)} {
				row, ok, err := maps.LookupFlow(m.Ct, flow)
				if err != nil || !ok || !isOfStack(flow, &row) || row.Checksum != maps.ChecksumOf(flow, row) {
					t.Errorf("with the frontends closed, the programs do not pass %v: %+v, %t, %v", flow, row, ok, err)
				}
			}
		}
		return nil
	})
	if len(over) > 0 {
		t.Error("it did not wait for the handshake, so nothing is shown")
	}
	if got := <-over; got != (Exported{Connections: 2, Taken: 1}) {
		t.Errorf("handed over: %+v; want 2, and one not", got)
	}
}
