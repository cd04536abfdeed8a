package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	Kind   string `json:"kind"` // "frontend", "service", "word", "slots", "backend" or "name"
	Where  string `json:"where"`
	Want   string `json:"want"`
	Have   string `json:"have"`
	Mended bool   `json:"mended"`

	unit unit
}

// Report is the result of one check.
type Report struct {
	Services    int           `json:"services"` // compared
	Frontends   int           `json:"frontends"`
	Backends    int           `json:"backends"`
	Found       int           `json:"found"`
	Mended      int           `json:"mended"`
	Pending     int           `json:"pending"`     // objects and rows waiting for a retry or a grace period, which were not judged
	Differences []Difference  `json:"differences"` // the first of those found
	Took        time.Duration `json:"tookNanoseconds"`
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

// verifier runs one check at a time between passes, a bounded part of it each turn, so that a change
// of endpoints never waits for a whole check.
type verifier struct {
	*frontendRows
	objects *objects
	log     *slog.Logger

	requests chan *request
	ended    <-chan struct{} // closed when Run has ended
	always   chan []foundRow // closed, so always ready
	timer    *time.Timer     // the next periodic check, or the end of the wait for mending
	current  *check
	known    map[string]struct{} // what the last repairing check could not mend
	compare  compareBuffers
}

func newVerifier(rows *frontendRows, objects *objects, log *slog.Logger, ended <-chan struct{}) *verifier {
	always := make(chan []foundRow)
	close(always)
	return &verifier{
		frontendRows: rows, objects: objects, log: log,
		requests: make(chan *request), ended: ended, always: always, timer: time.NewTimer(CheckEvery),
	}
}

// Verify compares the maps with what the latest objects compile to and, if repair is set, mends the
// differences. It is safe for concurrent use and waits for its turn in Run. The error is
// ErrUnsynced, ErrEnded, the context's, or that of reading the maps.
func (r *Reconciler) Verify(ctx context.Context, repair bool) (Report, error) {
	q := &request{repair, make(chan answer, 1)}
	select {
	case r.verifier.requests <- q:
	case <-r.verifier.ended:
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
func (v *verifier) waiting() <-chan *request {
	if v.current != nil {
		return nil
	}
	return v.requests
}

// turns returns a channel that is ready when the running check has something to do. It delivers the
// rows to look at.
func (v *verifier) turns() <-chan []foundRow {
	c := v.current
	switch {
	case c == nil || c.phase == phaseMending || c.phase == phaseRanges:
		return nil
	case c.phase == phaseRows:
		if c.walk == nil {
			c.walk = startWalk(v.tables.eachRow)
		}
		return c.walk.rows
	}
	return v.always
}

// rangeTurns is like turns for the ranges.
func (v *verifier) rangeTurns() <-chan []maps.Range {
	c := v.current
	if c == nil || c.phase != phaseRanges {
		return nil
	}
	if c.ranges == nil {
		c.ranges = startWalk(v.tables.Ranges.Each)
	}
	return c.ranges.rows
}

// rangeTurn checks listed ranges; no rows mean the end of the list.
func (v *verifier) rangeTurn(rows []maps.Range) {
	c := v.current
	if rows == nil {
		c.err = errors.Join(c.err, c.ranges.err)
		c.ranges = nil
		c.phase++
		v.timer.Reset(mendWait)
	}
	for _, row := range rows {
		v.compareStray(c, row)
	}
	v.collect(c)
}

// begin starts a check. A periodic one has no request.
func (v *verifier) begin(q *request) {
	if !v.synced {
		if q != nil {
			q.answer <- answer{err: ErrUnsynced}
		}
		v.timer.Reset(CheckEvery)
		return
	}
	v.current = &check{
		request: q, repair: q == nil || q.repair, started: time.Now(), used: make([]uint64, (len(v.tables.Backends)+63)/64),
	}
}

// onTimer handles the expiry of the timer.
func (v *verifier) onTimer() {
	switch c := v.current; {
	case c == nil:
		v.begin(nil)
	case c.phase == phaseMending:
		c.late = true
	}
}

// turn does a bounded part of the running check. A pass has to follow, which does the mending.
func (v *verifier) turn(rows []foundRow) {
	c := v.current
	switch c.phase {
	case phaseServices:
		for work := 0; work < turnWork && c.next < len(v.byIndex); c.next++ {
			work += 1 + v.checkService(c, uint32(c.next))
		}
		c.advance(len(v.byIndex))
	case phaseBackends:
		for work := 0; work < 32*turnWork && c.next < len(v.tables.Backends); c.next++ {
			work++
			v.checkBackend(c, uint32(c.next))
		}
		c.advance(len(v.tables.Backends))
	case phaseRows:
		if rows == nil { // that was the last
			c.err = errors.Join(c.err, c.walk.err)
			c.walk = nil
			c.phase++
		}
		v.checkRows(c, rows)
	}
	v.collect(c)
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
func (v *verifier) collect(c *check) {
	if len(c.turn) == 0 {
		return
	}
	changed := map[model.Key]struct{}{}
	dirty := v.objects.store.TakeDirty()
	v.objects.store.MarkDirty(dirty...)
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
			v.mend(d.unit)
			mended = d.unit
		}
	}
	c.turn = c.turn[:0]
}

// finish ends the running check if nothing is left to do, and reports whether it did. It is called
// after each pass.
func (v *verifier) finish() bool {
	c := v.current
	if c == nil || c.phase != phaseMending {
		return false
	}
	if c.repair && !c.late && c.err == nil {
		for i := range c.report.Differences {
			if v.waits(c.report.Differences[i].unit) {
				return false
			}
		}
	}
	if c.repair {
		v.compareRepaired(c)
	}
	c.report.Pending = len(v.objects.failed) + len(v.frontends.touched) + len(v.frontends.unsure)
	c.report.Took = time.Since(c.started)
	if c.repair {
		v.account(&c.report)
	}
	if c.request != nil {
		c.request.answer <- answer{c.report, c.err}
	} else if c.err != nil {
		v.log.Error("verify: cannot read the maps", "error", c.err)
	}
	v.current = nil
	v.timer.Reset(CheckEvery)
	return true
}

// compareRepaired compares the differing units again and records which of them are mended.
func (v *verifier) compareRepaired(c *check) {
	still := map[string]struct{}{}
	looked := map[unit]struct{}{}
	for _, d := range c.report.Differences {
		if v.waits(d.unit) {
			still[d.Kind+d.Where] = struct{}{}
		}
		if _, ok := looked[d.unit]; !ok {
			looked[d.unit] = struct{}{}
			v.compareUnit(c, d.unit)
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
func (v *verifier) account(report *Report) {
	known := map[string]struct{}{}
	found, mended, logged := report.Found, report.Mended, 0
	for _, d := range report.Differences {
		id := d.Kind + d.Where
		if !d.Mended {
			known[id] = struct{}{}
		}
		if _, ok := v.known[id]; ok {
			found--
			continue
		}
		if logged++; logged <= maxLogged {
			v.log.Warn("verify: found a damaged row in the maps", "kind", d.Kind, "where", d.Where, "want", d.Want, "have", d.Have,
				"mended", d.Mended)
		}
	}
	if found > maxLogged {
		v.log.Warn("verify: found more damaged rows than are logged", "found", found, "mended", mended)
	}
	v.known = known
	v.stats.Checks++
	v.stats.Damage += uint64(max(found, 0))
	v.stats.Repaired += uint64(mended)
	v.stats.LastCheck, v.stats.LastCheckDuration = time.Now(), report.Took
}

// end releases everybody who waits for a check.
func (v *verifier) end() {
	v.timer.Stop()
	c := v.current
	if c == nil {
		return
	}
	v.stopWalk()
	if c.request != nil {
		c.request.answer <- answer{err: ErrEnded}
	}
	v.current = nil
}
