package conntrack

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// grower provides Config.Grow and records the calls.
type grower struct {
	*memoryCollector
	asked []int
	fails error
}

func newGrower(most int) *grower {
	g := &grower{memoryCollector: newMemoryCollector()}
	g.cfg.Most, g.room = most, 100
	g.cfg.Grow = func(rows int) (Flows, error) {
		g.asked = append(g.asked, rows)
		if g.fails != nil {
			return nil, g.fails
		}
		g.room = rows
		return g.memory, nil
	}
	return g
}

func (g *grower) fill(flows int) {
	for i := range flows {
		g.enter(false, fmt.Sprintf("198.51.100.1:%d", 1000+len(g.rows[0])+i), "10.1.0.1:53", model.UDP, maps.FlowOpen)
	}
}

// The room grows before it runs out, by as much as is needed, up to Config.Most.
func TestGrow(t *testing.T) {
	g := newGrower(1024)
	for _, step := range []struct {
		flows, room int
	}{{25, 100}, {1, 128}, {100, 512}, {150, 1024}, {200, 1024}} {
		g.fill(step.flows)
		g.pass(t.Context())
		if have := g.Stats().Capacity[0]; g.room != step.room || have != step.room && step.room != 100 {
			t.Errorf("with %d rows there is room for %d, want %d; the stats say %d", len(g.rows[0]), g.room, step.room, have)
		}
	}
	if s := g.Stats(); s.Growths != 3 || s.Failures != 0 || len(g.asked) != 3 {
		t.Errorf("asked for %v, counts are %+v", g.asked, s)
	}
}

// A growth that failed shows in the stats and is tried again after every pass, whatever the pass
// finds.
func TestGrowFails(t *testing.T) {
	g := newGrower(1024)
	g.fails = errors.New("no memory")
	g.fill(30)
	g.pass(t.Context())
	g.err = errors.New("flows are in two maps")
	g.pass(t.Context())
	if s := g.Stats(); s.Failures != 2 || s.GrowError != "no memory" || g.room != 100 {
		t.Errorf("counts are %+v", s)
	}
	g.fails, g.err = nil, nil
	g.pass(t.Context())
	if s := g.Stats(); s.Growths != 1 || s.GrowError != "" || g.room != 128 {
		t.Errorf("counts are %+v, room for %d", s, g.room)
	}
	g.pass(t.Context())
	if len(g.asked) != 3 {
		t.Errorf("asked for %v", g.asked)
	}
}

// Flows that begin between two passes are noticed within a second or two, through the programs'
// count.
func TestGrowInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrower(1024)
		g.run(t, func() {
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			g.set(func() {
				g.fill(40)
				g.memory.opened += 40
			})
			time.Sleep(2 * glances)
			synctest.Wait()
			if g.Stats().Growths != 1 {
				t.Errorf("asked for %v", g.asked)
			}
			walks := g.walks
			time.Sleep(3 * glances)
			synctest.Wait()
			if g.walks != walks {
				t.Errorf("scanned %d maps although no flow began", g.walks-walks)
			}
		})
	})
}
