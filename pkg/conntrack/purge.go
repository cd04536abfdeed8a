package conntrack

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	rows "fairlead.io/fairlead/pkg/maps"
)

const (
	// gather is how long to collect backends that leave at the same time: endpoints are removed one
	// by one.
	gather = 100 * time.Millisecond
	// believe is how long a backend has to stay away to count as gone: an object that is replaced
	// is deleted first.
	believe = 200 * time.Millisecond
	// tired limits the load: after a purge whose passes took a time t, a Collector rests for
	// tired*t, however many backends leave.
	tired = 4
)

// purge deletes the flows whose backend is gone for good: UDP flows, whose end nothing announces,
// and flows whose first packet was never answered. TCP connections stay until their ends close
// them. One pass finds the backends that flows go to; the second deletes the flows of those that
// are gone and still gone a moment later. It returns how long to rest.
func (c *Collector) purge(ctx context.Context) time.Duration {
	c.walk.gathers = true
	took := c.pass(ctx)
	c.walk.gathers = false
	defer func() {
		// Give the memory back: there may have been very many origins.
		c.walk.origins, c.walk.gone = map[rows.Origin]struct{}{}, map[rows.Origin]struct{}{}
	}()
	gone, err := c.ask(ctx, slices.Collect(maps.Keys(c.walk.origins)))
	if err == nil && len(gone) > 0 && pause(ctx, believe) {
		gone, err = c.ask(ctx, gone)
	}
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		c.fail(fmt.Errorf("find flows whose backend is gone: %w", err))
		return tired * took
	}
	c.checked = time.Now()
	if len(gone) == 0 {
		return tired * took
	}
	for _, origin := range gone {
		c.walk.gone[origin] = struct{}{}
	}
	took += c.pass(ctx)
	if n := c.walk.tally.deleted[rows.DoomStale]; n > 0 {
		c.cfg.Log.Info("forgot flows whose backend is gone", "flows", n, "took", took)
	}
	return tired * took
}

// ask returns the origins whose backend is gone.
func (c *Collector) ask(ctx context.Context, origins []rows.Origin) ([]rows.Origin, error) {
	if len(origins) == 0 {
		return nil, nil
	}
	stale, err := c.cfg.Stale(ctx, origins)
	if err != nil {
		return nil, err
	}
	var gone []rows.Origin
	for i, origin := range origins {
		if stale[i] {
			gone = append(gone, origin)
		}
	}
	return gone, nil
}
