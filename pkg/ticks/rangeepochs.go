package ticks

import (
	"errors"
	"fmt"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/maps"
)

// farTicks is further in the future than any flow is old.
const farTicks = 1 << 30

// RangeEpochs tells the packet programs when the rules on who may use load balancers' addresses changed.
// While the lease of RouteEpoch lasts, the programs check only flows that were last used
// before such a change. It holds its own references, so it outlives its Datapath and a growth of
// maps. It is not safe for concurrent use.
type RangeEpochs struct {
	rows  *maps.Array[maps.RangeEpoch]
	clock *Clock
	last  uint32 // a recent tick
}

// NewRangeEpochs returns a RangeEpochs for programs over the given maps; see NewRouteEpoch.
func NewRangeEpochs(m *maps.Maps) (*RangeEpochs, error) {
	tick, err := Measure()
	if err != nil {
		return nil, err
	}
	clock, err := tick.Clock()
	if err != nil {
		return nil, err
	}
	last, err := clock.Now()
	if err != nil {
		return nil, errors.Join(err, clock.Close())
	}
	rows, err := maps.MapArray[maps.RangeEpoch](m.RangeEpochs, true)
	if err != nil {
		return nil, errors.Join(err, clock.Close())
	}
	g := &RangeEpochs{rows: rows, clock: clock, last: last}
	g.Begin()
	return g, nil
}

// Begin announces a change: until End, every flow is checked once a tick. Call it before the first
// store of the change. It makes no system call, so it cannot fail. If the process dies, the change
// stays under way.
func (g *RangeEpochs) Begin() {
	atomic.StoreUint32(&g.rows.Rows()[0].Changed, g.last+farTicks)
}

// End completes a change: each flow is checked once more. Call it after the last store. If it
// fails, the change is still under way.
func (g *RangeEpochs) End() error {
	last, err := g.clock.mark(&g.rows.Rows()[0].Changed)
	if err != nil {
		g.Begin()
		return fmt.Errorf("tell the programs that the range epoch changed: %w", err)
	}
	g.last = last
	return nil
}

// Close closes the maps.
func (g *RangeEpochs) Close() error { return errors.Join(g.rows.Close(), g.clock.Close()) }
