package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	// CheckEvery is how long a Reconciler waits between two periodic checks.
	CheckEvery = time.Minute

	turnWork       = 512             // rows compared before the loop looks for something more urgent
	mendWait       = 5 * time.Second // how long to wait for mending before reporting what is not mended
	maxDifferences = 1000            // that a Report lists
	maxLogged      = 20              // lines that one check logs
)

// ErrEnded is returned by Verify when the Reconciler's Run has ended.
var ErrEnded = errors.New("verify the maps: the agent is shutting down")

// ErrUnsynced is returned by Verify while the sources have not delivered everything.
var ErrUnsynced = errors.New("verify the maps: the sources have not delivered everything yet, so what belongs in the maps is unknown")

// Difference is a row of the maps that differs from what the objects compile to.
type Difference struct {
	Kind   string // "frontend", "service", "word", "slots", "backend" or "name"
	Where  string
	Want   string
	Have   string
	Mended bool

	unit unit
}

// Report is the result of one check.
type Report struct {
	Services    int // compared
	Frontends   int
	Backends    int
	Found       int
	Mended      int
	Pending     int          // objects and rows waiting for a retry or a grace period, which were not judged
	Differences []Difference // the first of them
	Took        time.Duration
}

// request asks for a check. Periodic checks have none.
type request struct {
	repair bool
	answer chan answer // buffered, so that answering never blocks
}

type answer struct {
	report Report
	err    error
}

// phase is how far a check has come.
type phase int

const (
	phaseServices phase = iota // and everything that belongs to them
	phaseBackends              // that no service uses
	phaseRows                  // of svcs that nobody owns
	phaseRanges                // of src_ranges that no service wants
	phaseMending
)

// check is a running comparison of the maps with the objects.
type check struct {
	request *request
	repair  bool
	started time.Time
	phase   phase
	next    int               // index within the phase
	used    []uint64          // one bit for each row of backends that a service uses
	walk    *walk[foundRow]   // of the frontends, in phaseRows
	ranges  *walk[maps.Range] // in phaseRanges
	turn    []Difference
	report  Report
	late    bool // the wait for mending is over
	err     error
}

// checks runs one check at a time between passes, a bounded part of it each turn, so that a change
// of endpoints never waits for a whole check.
type checks struct {
	requests chan *request
	ended    chan struct{}
	always   chan []foundRow // closed, so always ready
	timer    *time.Timer     // the next periodic check, or the end of the wait for mending
	current  *check
	known    map[string]struct{} // what the last repairing check could not mend
	compare  compareBuffers
}

func newChecks() checks {
	always := make(chan []foundRow)
	close(always)
	return checks{
		requests: make(chan *request), ended: make(chan struct{}), always: always, timer: time.NewTimer(CheckEvery),
	}
}

// Verify compares the maps with what the latest objects compile to and, if repair is set, mends the
// differences. It is safe for concurrent use and waits for its turn in Run. The error is
// ErrUnsynced, ErrEnded, the context's, or that of reading the maps.
func (r *Reconciler) Verify(ctx context.Context, repair bool) (Report, error) {
	q := &request{repair, make(chan answer, 1)}
	select {
	case r.checks.requests <- q:
	case <-r.checks.ended:
		return Report{}, ErrEnded
	case <-ctx.Done():
		return Report{}, fmt.Errorf("verify the maps: %w", context.Cause(ctx))
	}
	select {
	case a := <-q.answer:
		return a.report, a.err
	case <-ctx.Done():
		return Report{}, fmt.Errorf("verify the maps: %w", context.Cause(ctx))
	}
}

// waiting returns the channel of the next request. It is nil while a check is running.
func (c *checks) waiting() <-chan *request {
	if c.current != nil {
		return nil
	}
	return c.requests
}

// turns returns a channel that is ready when the running check has something to do. It delivers the
// rows to look at.
func (r *Reconciler) turns() <-chan []foundRow {
	c := r.checks.current
	switch {
	case c == nil || c.phase == phaseMending || c.phase == phaseRanges:
		return nil
	case c.phase == phaseRows:
		if c.walk == nil {
			c.walk = startWalk(r.tables.eachRow)
		}
		return c.walk.rows
	}
	return r.checks.always
}

// rangeTurns is like turns for the ranges.
func (r *Reconciler) rangeTurns() <-chan []maps.Range {
	c := r.checks.current
	if c == nil || c.phase != phaseRanges {
		return nil
	}
	if c.ranges == nil {
		c.ranges = startWalk(r.tables.Ranges.Each)
	}
	return c.ranges.rows
}

// rangeTurn checks listed ranges; no rows mean the end of the list.
func (r *Reconciler) rangeTurn(rows []maps.Range) {
	c := r.checks.current
	if rows == nil {
		c.err = errors.Join(c.err, c.ranges.err)
		c.ranges = nil
		c.phase++
		r.checks.timer.Reset(mendWait)
	}
	for _, row := range rows {
		r.compareStray(c, row)
	}
	r.collect(c)
}

// beginCheck starts a check. A periodic one has no request.
func (r *Reconciler) beginCheck(q *request) {
	r.sync()
	if !r.synced {
		if q != nil {
			q.answer <- answer{err: ErrUnsynced}
		}
		r.checks.timer.Reset(CheckEvery)
		return
	}
	r.checks.current = &check{
		request: q, repair: q == nil || q.repair, started: time.Now(), used: make([]uint64, (len(r.tables.Backends)+63)/64),
	}
}

// checkTimer handles the expiry of the timer.
func (r *Reconciler) checkTimer() {
	r.markIdle(time.Now())
	switch c := r.checks.current; {
	case c == nil:
		r.beginCheck(nil)
	case c.phase == phaseMending:
		c.late = true
	}
}

// turn does a bounded part of the running check. A pass has to follow, which does the mending.
func (r *Reconciler) turn(rows []foundRow) {
	c := r.checks.current
	switch c.phase {
	case phaseServices:
		for work := 0; work < turnWork && c.next < len(r.byIndex); c.next++ {
			work += 1 + r.checkService(c, uint32(c.next))
		}
		c.advance(len(r.byIndex))
	case phaseBackends:
		for work := 0; work < 32*turnWork && c.next < len(r.tables.Backends); c.next++ {
			work++
			r.checkBackend(c, uint32(c.next))
		}
		c.advance(len(r.tables.Backends))
	case phaseRows:
		if rows == nil { // that was the last
			c.err = errors.Join(c.err, c.walk.err)
			c.walk = nil
			c.phase++
		}
		r.checkRows(c, rows)
	}
	r.collect(c)
}

// advance moves on to the next phase at the end of this one.
func (c *check) advance(end int) {
	if c.next >= end {
		c.phase, c.next = c.phase+1, 0
	}
}

func (c *check) differ(u unit, kind, where, want, have string) {
	c.turn = append(c.turn, Difference{Kind: kind, Where: where, Want: want, Have: have, unit: u})
}

// collect takes over the differences that a turn found. An object that changed since it was applied
// differs for that reason and is not judged: the source marked it dirty before the change became
// visible, so it is among the dirty keys now.
func (r *Reconciler) collect(c *check) {
	if len(c.turn) == 0 {
		return
	}
	changed := map[model.Key]struct{}{}
	dirty := r.cfg.Store.TakeDirty()
	r.cfg.Store.MarkDirty(dirty...)
	for _, key := range dirty {
		changed[key] = struct{}{}
	}
	var mended unit
	for i, d := range c.turn {
		if _, ok := changed[d.unit.object]; ok && d.unit.kind == unitObject {
			continue
		}
		c.report.Found++
		if len(c.report.Differences) < maxDifferences {
			c.report.Differences = append(c.report.Differences, d)
		}
		if c.repair && (i == 0 || d.unit != mended) {
			r.mend(d.unit)
			mended = d.unit
		}
	}
	c.turn = c.turn[:0]
}

// finishCheck ends the running check if nothing is left to do. It is called after each pass.
func (r *Reconciler) finishCheck() {
	c := r.checks.current
	if c == nil || c.phase != phaseMending {
		return
	}
	if c.repair && !c.late && c.err == nil {
		for i := range c.report.Differences {
			if r.waits(c.report.Differences[i].unit) {
				return
			}
		}
	}
	if c.repair {
		r.compareRepaired(c)
	}
	c.report.Pending = len(r.failed) + len(r.frontends.touched) + len(r.frontends.unsure)
	c.report.Took = time.Since(c.started)
	if c.repair {
		r.account(&c.report)
	}
	if c.request != nil {
		c.request.answer <- answer{c.report, c.err}
	} else if c.err != nil {
		r.cfg.Log.Error("verify: cannot read the maps", "error", c.err)
	}
	r.checks.current = nil
	r.checks.timer.Reset(CheckEvery)
}

// compareRepaired compares the differing units again and records which of them are mended.
func (r *Reconciler) compareRepaired(c *check) {
	still := map[string]struct{}{}
	looked := map[unit]struct{}{}
	for _, d := range c.report.Differences {
		if r.waits(d.unit) {
			still[d.Kind+d.Where] = struct{}{}
		}
		if _, ok := looked[d.unit]; !ok {
			looked[d.unit] = struct{}{}
			r.compareUnit(c, d.unit)
		}
	}
	for _, d := range c.turn {
		still[d.Kind+d.Where] = struct{}{}
	}
	// Differences beyond the listed ones were mended in the same way. If one was not, the next
	// check finds it.
	c.report.Mended = c.report.Found
	for i := range c.report.Differences {
		d := &c.report.Differences[i]
		_, left := still[d.Kind+d.Where]
		if d.Mended = !left; left {
			c.report.Mended--
		}
	}
}

// account counts and logs the result of a repairing check. A difference that persists counts once.
func (r *Reconciler) account(report *Report) {
	known := map[string]struct{}{}
	found, mended, logged := report.Found, report.Mended, 0
	for _, d := range report.Differences {
		id := d.Kind + d.Where
		if !d.Mended {
			known[id] = struct{}{}
		}
		if _, ok := r.checks.known[id]; ok {
			found--
			continue
		}
		if logged++; logged <= maxLogged {
			r.cfg.Log.Warn("verify: found a damaged row in the maps", "kind", d.Kind, "where", d.Where, "want", d.Want, "have", d.Have,
				"mended", d.Mended)
		}
	}
	if found > maxLogged {
		r.cfg.Log.Warn("verify: found more damaged rows than are logged", "found", found, "mended", mended)
	}
	r.checks.known = known
	r.stats.Checks++
	r.stats.Damage += uint64(max(found, 0))
	r.stats.Repaired += uint64(mended)
	r.stats.LastCheck, r.stats.LastCheckDuration = time.Now(), report.Took
	r.show()
}

// endChecks releases everybody who waits for a check.
func (r *Reconciler) endChecks() {
	close(r.checks.ended)
	r.checks.timer.Stop()
	c := r.checks.current
	if c == nil {
		return
	}
	r.stopWalk()
	if c.request != nil {
		c.request.answer <- answer{err: ErrEnded}
	}
	r.checks.current = nil
}
