package reconcile

import (
	"maps"
	"time"

	"fairlead.io/fairlead/pkg/model"
)

// Meter is told how long things took. It must not block, and is called by the Reconciler's goroutine alone.
type Meter interface {
	// Pass is how long a pass took that had something to compile.
	Pass(took time.Duration)
	// Programmed is how long a change of endpoints took from where it began, in the cluster, into the maps of this node.
	Programmed(family model.Family, took time.Duration)
}

// maxTriggers bounds what is kept of changes that cannot be applied.
const maxTriggers = 4096

// takeDirty takes the keys that are dirty, and before them the triggers of their changes.
func (r *Reconciler) takeDirty() []model.Key {
	if r.cfg.Meter != nil {
		fresh := r.cfg.Store.Triggers()
		r.triggers = append(r.triggers, fresh[:min(len(fresh), maxTriggers-len(r.triggers))]...)
	}
	return r.cfg.Store.TakeDirty()
}

// measure tells the Meter about the pass that began at start, and about the changes that are in the maps since.
func (r *Reconciler) measure(start time.Time) {
	if r.cfg.Meter == nil {
		return
	}
	now := time.Now()
	r.cfg.Meter.Pass(now.Sub(start))
	waiting := r.triggers[:0]
	for _, t := range r.triggers {
		if _, failed := r.failed[model.Key{Kind: model.KindService, Name: t.Service}]; failed {
			waiting = append(waiting, t)
			continue
		}
		// A clock that is ahead elsewhere must not take time off the sum.
		r.cfg.Meter.Programmed(t.Family, max(0, now.Sub(t.At)))
	}
	clear(r.triggers[len(waiting):])
	r.triggers = waiting
	if len(waiting) == 0 {
		r.triggers = nil
	}
}

// settle tells the Store when nothing that it gave is left to do, and notes since when readers have been waited for.
func (r *Reconciler) settle(failed error) {
	if failed == nil && len(r.failed) == 0 {
		r.cfg.Store.Settled()
		r.stats.LastSettled = time.Now()
	}
	r.stats.GraceSince = r.grace.since
}

// count keeps the number of problems of each reason.
func (r *Reconciler) count(list []model.Problem, by int) {
	for _, problem := range list {
		if r.reasons[problem.Reason] += by; r.reasons[problem.Reason] == 0 {
			delete(r.reasons, problem.Reason)
		}
	}
}

// Reasons returns how many problems there are of each reason. The reasons are words of ours, so they are few.
func (r *Reconciler) Reasons() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.reasons)
}
