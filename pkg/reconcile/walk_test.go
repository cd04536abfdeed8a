package reconcile

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// closing is a Frontends that must not be listed once a larger map has replaced it.
type closing struct {
	Frontends
	t      *testing.T
	closed atomic.Bool
}

func (c *closing) Each(f func(maps.SvcKey, maps.Svc)) error {
	return c.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		if c.closed.Load() {
			c.t.Error("a map was listed after it was replaced")
		}
		f(key, row)
	})
}

// TestGrowthEndsAWalk grows the maps while a check lists the frontends. The check lists the new map
// from the start.
func TestGrowthEndsAWalk(t *testing.T) {
	store := model.NewStore("node0")
	var list []*model.Service
	for i := range 3 * walkRows {
		s := web(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String())
		s.Name.Name = fmt.Sprint("s", i)
		list = append(list, s)
	}
	deliver(store, list, nil)
	r := start(t, store, NewMemory(small), nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	old := &closing{Frontends: r.tables.Frontends, t: t}
	r.tables.Frontends = old
	grow := r.cfg.Grow
	r.cfg.Grow = func(sizes maps.Sizes) (*Tables, error) {
		old.closed.Store(true)
		return grow(sizes)
	}
	handed := 0
	report := verify(t, r, false, func() {
		if r.verifier.current.phase != phaseRows {
			return
		}
		if handed++; handed == 2 {
			if err := r.grow(maps.Sizes{Svcs: 1 << 20}); err != nil {
				t.Error(err)
			}
		}
	})
	if report.Found != 0 || report.Services != len(list) || handed < 5 {
		t.Errorf("%+v after %d turns", report, handed)
	}
}
