// Package conntrack maintains the flow maps that the packet programs write. It alone deletes flows
// that ended, timed out or lost their backend, so the programs need no timers.
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
	// soonest and latest bound the time between two passes.
	soonest = 5 * time.Second
	latest  = time.Minute
	// crowded is the part of a map's capacity at which a Collector runs as often as soonest.
	crowded = 0.75
	// idle limits the load: after a pass that took a time t, a Collector rests for idle*t, so it
	// never takes more than two percent of a CPU.
	idle = 50
)

// Flows gives access to the flow maps. datapath.Flows implements it.
type Flows interface {
	// Capacity returns how many rows fit, of established or of half-open flows.
	Capacity(half bool) int
	// Opened returns how many flows were ever established.
	Opened() (uint64, error)
	// Jiffies returns the current time of the programs' clock.
	Jiffies() (uint64, error)
	// Each calls visit with all rows, in batches. visit must not retain the slices.
	Each(half bool, visit func([]maps.Flow, []maps.FlowRow) error) error
	// Collect deletes flows and fills in the outcomes. Flows doomed as idle are checked again
	// first.
	Collect(half bool, shift uint32, limits *maps.FlowLimits, list []maps.Doomed) error
}

// Config is what a Collector needs.
type Config struct {
	Flows    Flows
	Clock    Clock
	Timeouts Timeouts
	// Stale reports for each origin whether its backend is gone for good.
	Stale func(ctx context.Context, origins []maps.Origin) ([]bool, error)
	// StackEntry returns, for a UDP flow that the programs pass unchanged and the stack translates by a
	// conntrack entry of its own, the address the client dialed and its backend. Nil if the stack
	// translates none.
	StackEntry func(maps.Flow) (maps.Origin, bool, error)
	// Grow makes room for at least this many rows of established flows and returns the Flows to use
	// instead of Flows from then on. If it fails it may have done half the work, so the Collector
	// calls it again until it succeeds. Nil if the map cannot grow.
	Grow  func(rows int) (Flows, error)
	Ports Ports // that are lent to flows
	Most  int   // rows of established flows beyond which Grow is not called
	Log   *slog.Logger
}

// Collector deletes flows. Run must run in one goroutine; Left, Wake and Stats may be called from any.
type Collector struct {
	cfg      Config
	limits   maps.FlowLimits
	wake     chan struct{}
	passSoon chan struct{}
	walk     walk

	interval time.Duration
	checked  time.Time // when backends were last checked
	wanted   int       // rows of a growth that failed, to try again
	opened   uint64    // flows established when the last pass began

	mu    sync.Mutex // guards stats, so that Stats never waits for a pass
	stats Stats
}

// NewCollector returns a Collector.
func NewCollector(cfg Config) *Collector {
	return &Collector{
		stats: Stats{Most: cfg.Most},
		cfg:   cfg, limits: cfg.Timeouts.limits(cfg.Clock), wake: make(chan struct{}, 1),
		passSoon: make(chan struct{}, 1), interval: soonest,
		walk: walk{origins: map[maps.Origin]struct{}{}, gone: map[maps.Origin]struct{}{}, stack: stackFlows{ask: cfg.StackEntry}, ports: newPortUse(cfg.Ports)},
	}
}

// Left tells the Collector that backends may be gone, so that it looks for their flows soon. It
// never blocks.
func (c *Collector) Left(model.Protocol) { signal(c.wake) }

// Wake tells the Collector that somebody wants to know now what Stats tells, so that it passes
// earlier than it would, though no more often than it ever does. It never blocks.
func (c *Collector) Wake() { signal(c.passSoon) }

func signal(of chan struct{}) {
	select {
	case of <- struct{}{}:
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
		case <-c.passSoon:
			if last := c.Stats(); time.Since(last.LastPass) < max(soonest, idle*last.LastTook) {
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

// pause waits, and reports false if the context ended meanwhile.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// pass scans all flows once and deletes those that are over and those whose backend is known to be
// gone.
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

// next returns how long to wait for the next pass: less where there is less room or more to delete.
func (c *Collector) next(took time.Duration) time.Duration {
	t := &c.walk.tally
	full := max(share(t.rows[0], c.cfg.Flows.Capacity(false)), share(t.rows[1], c.cfg.Flows.Capacity(true)), c.walk.ports.share())
	wait := c.interval
	switch deleted := t.deleted[maps.DoomIdle]; {
	case 2*8*deleted > t.rows[0]+t.rows[1]: // a flow has two rows
		wait /= 2
	case 2*64*deleted <= t.rows[0]+t.rows[1]:
		wait += wait / 2
	}
	most := latest - time.Duration(min(1, full/crowded)*float64(latest-soonest))
	if len(c.walk.stack.is) > 0 { // the stack may drop their entries at any time
		most = soonest
	}
	return max(min(max(wait, soonest), most), idle*took)
}

func share(n, of int) float64 { return float64(n) / float64(max(1, of)) }
