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
	// gather is how long what leaves at the same time is waited for: endpoints go one by one.
	gather = 100 * time.Millisecond
	// believe is how long a backend has to stay away: an object that is replaced is deleted first.
	believe = 200 * time.Millisecond
	// tired is how many times as long as its passes took a Collector rests after a purge, however much leaves.
	tired = 4
)

// purge forgets the flows whose backend is gone for good: datagrams, of whose end nobody is told, and first packets that
// nobody has answered. A connection by TCP stays until its ends are done with it. One look finds out which backends there
// are flows to; who is gone, and is still gone a moment later, is what the second one deletes. It returns how long to
// rest.
func (c *Collector) purge(ctx context.Context) time.Duration {
	c.walk.gathers = true
	took := c.pass(ctx)
	c.walk.gathers = false
	defer func() {
		// The memory of a crowd is given back.
		c.walk.peers, c.walk.gone = map[rows.Peer]struct{}{}, map[rows.Peer]struct{}{}
	}()
	gone, err := c.ask(ctx, slices.Collect(maps.Keys(c.walk.peers)))
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
	for _, peer := range gone {
		c.walk.gone[peer] = struct{}{}
	}
	took += c.pass(ctx)
	if n := c.walk.tally.deleted[rows.DoomStale]; n > 0 {
		c.cfg.Log.Info("forgot flows whose backend is gone", "flows", n, "took", took)
	}
	return tired * took
}

// ask returns those whose backend is gone.
func (c *Collector) ask(ctx context.Context, peers []rows.Peer) ([]rows.Peer, error) {
	if len(peers) == 0 {
		return nil, nil
	}
	stale, err := c.cfg.Stale(ctx, peers)
	if err != nil {
		return nil, err
	}
	var gone []rows.Peer
	for i, peer := range peers {
		if stale[i] {
			gone = append(gone, peer)
		}
	}
	return gone, nil
}
