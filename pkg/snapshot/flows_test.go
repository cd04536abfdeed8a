package snapshot

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// A flow that is moved to a larger map during the listing is listed once.
func TestFlowsCopiedMeanwhile(t *testing.T) {
	rig.Root(t)
	r := &FlowReader{}
	for _, m := range []**ebpf.Map{&r.next, &r.open, &r.half} {
		made, err := maps.NewFlowMap(1024)
		if err != nil {
			t.Fatal(err)
		}
		*m = made
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	const flows = 100
	addr := func(text string) maps.Addr { return maps.AddrOf(netip.MustParseAddr(text)) }
	carryOver := []func() error{}
	for i := range flows {
		request := maps.Flow{Saddr: addr("198.51.100.1"), Daddr: addr("192.0.2.1"), Sport: maps.PortOf(uint16(4000 + i)), Dport: 80, Proto: 6}
		row := maps.FlowRow{Saddr: addr("192.0.2.1"), Daddr: addr("10.1.0.1"), Sport: request.Sport, Dport: 80, State: maps.FlowOpen}
		back := maps.FlowRow{Saddr: request.Daddr, Daddr: request.Saddr, Sport: request.Dport, Dport: request.Sport, State: maps.FlowOpen,
			Kind: maps.FlowReply}
		if err := errors.Join(r.open.Put(request, row), r.open.Put(maps.BackOf(request, &row), back)); err != nil {
			t.Fatal(err)
		}
		carryOver = append(carryOver, func() error {
			return errors.Join(r.next.Put(request, row), r.next.Put(maps.BackOf(request, &row), back))
		})
	}
	seen := map[maps.Flow]int{}
	err := r.Each(&FlowFilter{}, func(f *Flow, d maps.Doomed, _ bool) error {
		seen[d.Request]++
		if f.Missing != "" {
			t.Errorf("%s: no %s", f.Client, f.Missing)
		}
		for _, one := range carryOver {
			if err := one(); err != nil {
				return err
			}
		}
		carryOver = nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, n := range seen {
		if n != 1 {
			t.Errorf("%s is listed %d times", maps.FlowSource(key), n)
		}
	}
	if len(seen) != flows {
		t.Errorf("%d flows are listed, want %d", len(seen), flows)
	}
}
