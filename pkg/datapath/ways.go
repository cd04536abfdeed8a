package datapath

import (
	"errors"
	"fmt"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/maps"
)

const (
	// leaseTicks is how long the programs believe that changes are followed after they were last told so: about as long
	// a change goes unnoticed if the agent is killed.
	leaseTicks = 4
	// settleTicks is how long after it was told of a change the kernel may still be at it: the death of a device is
	// announced before its routes go.
	settleTicks = 1
)

// Ways is what the programs of packets are told of changes of the ways that packets take. It has what it needs for
// itself, so it outlives its Datapath and a growth of maps. It is for one goroutine.
type Ways struct {
	rows  *maps.Array[maps.Ways]
	clock *Clock
}

// Ways returns what the programs are told of changes of ways; the caller closes it.
func (d *Datapath) Ways() (*Ways, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("open what is told of ways: %w", ErrNoMaps)
	}
	return NewWays(d.maps)
}

// NewWays is Ways for programs over the given maps, which stay the caller's and have to tell time in ticks of
// MeasureTick.
func NewWays(m *maps.Maps) (*Ways, error) {
	tick, err := MeasureTick()
	if err != nil {
		return nil, err
	}
	clock, err := tick.Clock()
	if err != nil {
		return nil, err
	}
	rows, err := maps.MapArray[maps.Ways](m.Ways, true)
	if err != nil {
		return nil, errors.Join(err, clock.Close())
	}
	return &Ways{rows: rows, clock: clock}, nil
}

func (w *Ways) row() *maps.Ways { return &w.rows.Rows()[0] }

// Changed says that there was a change: each flow asks for its way anew. When it returns without an error, no packet can
// have found its way good after the change and before this: a clock that went on meanwhile is read again.
func (w *Ways) Changed() error {
	if _, err := w.clock.mark(&w.row().Changed); err != nil {
		return fmt.Errorf("tell the programs that ways changed: %w", err)
	}
	return nil
}

// mark stores, and returns, a tick that none of before is later than: what was noted up to now is older.
func (c *Clock) mark(word *uint32) (uint32, error) {
	now, err := c.Now()
	for err == nil {
		told := now + settleTicks
		atomic.StoreUint32(word, told)
		if now, err = c.Now(); err == nil && int32(now-told) <= 0 {
			return told, nil
		}
	}
	return 0, err
}

// Vouch says that all changes are followed up to now, and will be for some seconds.
func (w *Ways) Vouch() error {
	now, err := w.clock.Now()
	if err != nil {
		return fmt.Errorf("tell the programs that ways are followed: %w", err)
	}
	atomic.StoreUint32(&w.row().Until, now+leaseTicks)
	return nil
}

// Revoke says that changes are not followed any more: flows ask for their way every tick.
func (w *Ways) Revoke() error {
	now, err := w.clock.Now()
	if err != nil {
		return fmt.Errorf("tell the programs that ways are not followed: %w", err)
	}
	atomic.StoreUint32(&w.row().Until, now-1)
	return nil
}

// Close revokes, and lets go of the maps.
func (w *Ways) Close() error {
	return errors.Join(w.Revoke(), w.rows.Close(), w.clock.Close())
}
