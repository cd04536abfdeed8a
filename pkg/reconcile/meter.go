package reconcile

import (
	"time"

	"fairlead.io/fairlead/pkg/model"
)

// Meter is told how long things took. Its methods must not block; only the Reconciler's goroutine
// calls them.
type Meter interface {
	// Pass records the duration of a pass that compiled something.
	Pass(took time.Duration)
	// Programmed records how long a change of endpoints took from its start in the cluster until it
	// was in this node's maps.
	Programmed(family model.Family, took time.Duration)
}

// maxTriggers bounds the triggers kept for changes that cannot be applied.
const maxTriggers = 4096

// takeDirty takes the dirty keys. It takes the triggers of their changes first.
func (r *Reconciler) takeDirty() []model.Key {
	if r.cfg.Meter != nil {
		fresh := r.cfg.Store.Triggers()
		r.triggers = append(r.triggers, fresh[:min(len(fresh), maxTriggers-len(r.triggers))]...)
	}
	return r.cfg.Store.TakeDirty()
}

// measure reports to the Meter the pass that began at start, and the changes that are now in the
// maps.
func (r *Reconciler) measure(start time.Time) {
	if r.cfg.Meter == nil {
		return
	}
	now := time.Now()
	r.cfg.Meter.Pass(now.Sub(start))
	waiting := r.triggers[:0]
	for _, t := range r.triggers {
		key := model.Key{Kind: model.KindService, Name: t.Service}
		_, failed := r.objects.failed[key]
		if _, late := r.backlog.late[key]; late || failed {
			waiting = append(waiting, t)
			continue
		}
		// A remote clock that is ahead must not reduce the sum.
		r.cfg.Meter.Programmed(t.Family, max(0, now.Sub(t.At)))
	}
	clear(r.triggers[len(waiting):])
	r.triggers = waiting
	if len(waiting) == 0 {
		r.triggers = nil
	}
}

// reportApplied tells the Store when everything it delivered is done, or since when some of it waits for
// its turn, and records since when a grace period has lasted.
func (r *Reconciler) reportApplied(failed error) {
	if failed == nil && len(r.objects.failed) == 0 {
		oldest := r.backlog.oldest()
		r.cfg.Store.Applied(oldest)
		r.stats.LastApplied = oldest
		if oldest.IsZero() {
			r.stats.LastApplied = time.Now()
		}
		r.stats.LastProgress = time.Now()
	}
	r.stats.GraceSince = r.grace.since
}

// Stuck returns since when the Reconciler makes no progress although changes wait, or since when it
// has been waiting for readers; zero if neither. Changes that wait for their turn behind others do
// not count while passes do their work: otherwise whoever may write many large Services could have
// every node report that it is unhealthy. It is safe for concurrent use.
func (r *Reconciler) Stuck() time.Time {
	since, stats := r.cfg.Store.Waiting(), r.Stats()
	if !since.IsZero() && stats.LastProgress.After(since) {
		since = stats.LastProgress
	}
	if grace := stats.GraceSince; since.IsZero() || !grace.IsZero() && grace.Before(since) {
		return grace
	}
	return since
}
