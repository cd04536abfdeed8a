package ticks

import (
	"errors"
	"fmt"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/maps"
)

// leaseTicks is how long the programs trust that changes are followed after the last Renew: if the
// agent is killed, changes go unnoticed for about as long.
const leaseTicks = 4

// kernelLagTicks is how long the kernel may still be working on a change after announcing it: it
// announces that a device is gone before it removes the device's routes.
const kernelLagTicks = 1

// RouteEpoch tells the packet programs when the routes of packets changed. It holds its own references,
// so it outlives its Datapath and a growth of maps. It is not safe for concurrent use.
type RouteEpoch struct {
	rows  *maps.Array[maps.RouteEpoch]
	clock *Clock
}

// NewRouteEpoch returns a RouteEpoch for programs over the given maps, which the caller still owns. The
// programs must count time in the ticks of MeasureTick.
func NewRouteEpoch(m *maps.Maps) (*RouteEpoch, error) {
	tick, err := Measure()
	if err != nil {
		return nil, err
	}
	clock, err := tick.Clock()
	if err != nil {
		return nil, err
	}
	rows, err := maps.MapArray[maps.RouteEpoch](m.RouteEpoch, true)
	if err != nil {
		return nil, errors.Join(err, clock.Close())
	}
	return &RouteEpoch{rows: rows, clock: clock}, nil
}

func (w *RouteEpoch) row() *maps.RouteEpoch { return &w.rows.Rows()[0] }

// Changed announces a change: each flow looks its route up again. Once it returns without an error,
// no packet can have found its route valid after the change and before this call: if the clock
// advanced meanwhile, Changed writes it again.
func (w *RouteEpoch) Changed() error {
	if _, err := w.clock.mark(&w.row().Changed); err != nil {
		return fmt.Errorf("tell the programs that routes changed: %w", err)
	}
	return nil
}

// Renew promises the programs that all changes up to now, and for some seconds from now, are
// announced.
func (w *RouteEpoch) Renew() error {
	now, err := w.clock.Now()
	if err != nil {
		return fmt.Errorf("tell the programs that routes are followed: %w", err)
	}
	atomic.StoreUint32(&w.row().Until, now+leaseTicks)
	return nil
}

// End ends that: flows look their routes up every tick.
func (w *RouteEpoch) End() error {
	now, err := w.clock.Now()
	if err != nil {
		return fmt.Errorf("tell the programs that routes are not followed: %w", err)
	}
	atomic.StoreUint32(&w.row().Until, now-1)
	return nil
}

// Close ends the lease and closes the maps.
func (w *RouteEpoch) Close() error {
	return errors.Join(w.End(), w.rows.Close(), w.clock.Close())
}
