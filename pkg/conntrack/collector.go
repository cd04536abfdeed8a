// Package conntrack looks after the memory of flows that the programs of packets write: it is the only one that deletes
// flows which ended, fell silent or have lost their backend. The programs need no timer, and pay nothing for it.
package conntrack

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	// soonest and latest are how long a Collector waits between two passes.
	soonest = 5 * time.Second
	latest  = time.Minute
	// crowded is the part of the room that may be taken before a Collector is as quick as it can be.
	crowded = 0.75
	// idle is how many times as long as a pass took a Collector rests after it, so it never takes more than two
	// percent of a processor.
	idle = 50
)

// Flows is the memory of flows; a datapath.Flows is one.
type Flows interface {
	// Capacity returns how many rows there is room for, of established flows or of half-open ones.
	Capacity(half bool) int
	// Opened returns how many flows were established, ever.
	Opened() (uint64, error)
	// Jiffies returns the time of the programs' clock.
	Jiffies() (uint64, error)
	// Each calls visit with all rows, some at a time, which visit may not keep.
	Each(half bool, visit func([]maps.Flow, []maps.FlowRow) error) error
	// Collect forgets flows and fills in the outcome. Those that are doomed for being idle are judged again.
	Collect(half bool, shift uint32, limits *maps.FlowLimits, list []maps.Doomed) error
}

// Config is what a Collector needs.
type Config struct {
	Flows    Flows
	Clock    Clock
	Timeouts Timeouts
	// Stale reports of each peer whether its backend is gone for good.
	Stale func(ctx context.Context, peers []maps.Peer) ([]bool, error)
	// Kept returns what the client of datagrams that the programs pass dialled and the backend that it has, if the stack translates them by a
	// record of its own. Nil where it does not.
	Kept func(maps.Flow) (maps.Peer, bool, error)
	// Grow gives the established flows room for at least so many rows, and returns where they are then; Flows is not used
	// any more. It may have begun when it fails: then it is called again, until it succeeds. Nil for never.
	Grow func(rows int) (Flows, error)
	Most int // rows of established flows, beyond which Grow is not asked for more
	Log  *slog.Logger
}

// Collector deletes flows. Run is its only goroutine; Left and Stats may be called from others.
type Collector struct {
	cfg    Config
	limits maps.FlowLimits
	wake   chan struct{}
	walk   walk

	interval time.Duration
	checked  time.Time // when flows were last judged by their backends
	wanted   int       // rows, of a growth that failed
	opened   uint64    // flows, by the begin of the last pass

	mu    sync.Mutex // guards the counts, which must be there for whoever asks
	stats Stats
}

// NewCollector returns a Collector.
func NewCollector(cfg Config) *Collector {
	return &Collector{
		stats: Stats{Most: cfg.Most},
		cfg:   cfg, limits: cfg.Timeouts.limits(cfg.Clock), wake: make(chan struct{}, 1), interval: soonest,
		walk: walk{peers: map[maps.Peer]struct{}{}, gone: map[maps.Peer]struct{}{}, kept: kept{ask: cfg.Kept}},
	}
}

// Left makes the Collector look soon for flows whose backend is gone. It never blocks.
func (c *Collector) Left(model.Protocol) {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run collects until the context ends.
func (c *Collector) Run(ctx context.Context) error {
	timer := time.NewTimer(c.interval)
	defer timer.Stop()
	glance := time.NewTicker(glances)
	defer glance.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
			if !pause(ctx, gather) {
				return nil
			}
			c.drain()
			pause(ctx, c.purge(ctx))
		case <-glance.C:
			if !c.fills() {
				continue
			}
			c.pass(ctx)
		case <-timer.C:
			if time.Since(c.checked) >= latest {
				c.purge(ctx)
			} else {
				c.pass(ctx)
			}
		}
		timer.Reset(c.interval)
	}
}

func (c *Collector) drain() {
	select {
	case <-c.wake:
	default:
	}
}

// pause waits, and reports whether there is a reason to go on.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// pass looks through all flows once and deletes what is over, and what has lost its backend as far as that is known.
func (c *Collector) pass(ctx context.Context) time.Duration {
	start := time.Now()
	c.opened, _ = c.cfg.Flows.Opened()
	err := c.walk.all(c.cfg.Flows, c.cfg.Clock.Shift, &c.limits)
	took := time.Since(start)
	if ctx.Err() == nil {
		c.account(took, err)
	}
	c.interval = c.next(took)
	c.grow(err == nil)
	return took
}

// next returns how long to wait: less where there is less room, or more to delete.
func (c *Collector) next(took time.Duration) time.Duration {
	t := &c.walk.tally
	full := max(share(t.rows[0], c.cfg.Flows.Capacity(false)), share(t.rows[1], c.cfg.Flows.Capacity(true)))
	wait := c.interval
	switch deleted := t.deleted[maps.DoomIdle]; {
	case 2*8*deleted > t.rows[0]+t.rows[1]: // two rows each
		wait /= 2
	case 2*64*deleted <= t.rows[0]+t.rows[1]:
		wait += wait / 2
	}
	most := latest - time.Duration(min(1, full/crowded)*float64(latest-soonest))
	if len(c.walk.kept.is) > 0 { // the stack may forget them at any time
		most = soonest
	}
	return max(min(max(wait, soonest), most), idle*took)
}

func share(n, of int) float64 { return float64(n) / float64(max(1, of)) }
