package datapath

import (
	"errors"
	"fmt"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/maps"
)

// farTicks is further ahead than a flow is old.
const farTicks = 1 << 30

// Guards is what the programs of packets are told of changes of who may use load balancers' addresses. As long as the
// agent vouches (see Ways), they ask who may only of flows that were last used before such a change. It has what it needs
// for itself, so it outlives its Datapath and a growth of maps. It is for one goroutine.
type Guards struct {
	rows  *maps.Array[maps.Guard]
	clock *Clock
	last  uint32 // a tick of not long ago
}

// Guards returns what the programs are told of such changes, with one under way: nobody knows what was told before. The
// caller closes it.
func (d *Datapath) Guards() (*Guards, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("open what is told of guards: %w", ErrNoMaps)
	}
	return NewGuards(d.maps)
}

// NewGuards is Guards for programs over the given maps, as NewWays.
func NewGuards(m *maps.Maps) (*Guards, error) {
	tick, err := MeasureTick()
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
	rows, err := maps.MapArray[maps.Guard](m.Guards, true)
	if err != nil {
		return nil, errors.Join(err, clock.Close())
	}
	g := &Guards{rows: rows, clock: clock, last: last}
	g.Begin()
	return g, nil
}

// Begin says that there is about to be a change: every flow is judged once a tick until End. It comes before the first
// store of the change and asks nobody, so it cannot fail, and whoever dies after it leaves that behind.
func (g *Guards) Begin() {
	atomic.StoreUint32(&g.rows.Rows()[0].Changed, g.last+farTicks)
}

// End says that there was one: each flow is judged once more. It comes after the last store. After an error the change is
// still under way.
func (g *Guards) End() error {
	last, err := g.clock.mark(&g.rows.Rows()[0].Changed)
	if err != nil {
		g.Begin()
		return fmt.Errorf("tell the programs that guards changed: %w", err)
	}
	g.last = last
	return nil
}

// Close lets go of the maps.
func (g *Guards) Close() error { return errors.Join(g.rows.Close(), g.clock.Close()) }
