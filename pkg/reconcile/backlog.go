package reconcile

import (
	"fmt"
	"slices"
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
)

// passWork bounds a pass: it ends after the object with which its work reaches this many rows. What
// is left waits for the next pass, which comes at once, so that nothing urgent has to wait for all
// of somebody else's objects.
const passWork = 1 << 16

// objectWork is what an object costs in addition to its rows.
const objectWork = 16

// work returns what it costs to apply an object, in rows. Slots are cheap.
func work(uses lb.Quota) int {
	return objectWork + uses.Frontends + uses.Hosted + uses.Backends + uses.Slots/16
}

// backlog has the objects that wait for a later pass, and since when.
type backlog struct {
	late map[model.Key]time.Time
	last string // the namespace whose turn was the last
	work int    // done in this pass
	// begun says that a pass knew everything and did it.
	begun bool
}

// applyDirty applies dirty objects until all are done or the pass has done enough. An object's
// claims may make others due. That ends: each round settles some objects, and the best claim never
// moves again.
//
// The first pass that knows everything does everything: a frontend must not lead to the second-best
// claim until its owner has its turn.
func (r *Reconciler) applyDirty(start time.Time, fail func(error)) {
	b := &r.backlog
	b.work = 0
	for keys := r.takeDirty(); len(keys) > 0; keys = r.takeDirty() {
		for i, key := range b.inTurn(keys) {
			if b.begun && b.work >= passWork {
				r.postpone(keys[i:], start)
				return
			}
			b.last = key.Namespace
			delete(b.late, key)
			r.stats.Compiled++
			if err := r.apply(key); err != nil {
				r.objects.failed[key] = struct{}{}
				fail(fmt.Errorf("apply %s: %w", key, err))
			} else {
				delete(r.objects.failed, key)
			}
		}
		r.cfg.Store.MarkDirty(r.objects.quotas.choose()...)
	}
	b.begun = r.synced
}

// postpone leaves objects to the next pass.
func (r *Reconciler) postpone(keys []model.Key, now time.Time) {
	for _, key := range keys {
		if _, ok := r.backlog.late[key]; !ok {
			r.backlog.late[key] = now
		}
	}
	r.cfg.Store.MarkDirty(append(r.objects.quotas.choose(), keys...)...)
}

// oldest returns since when an object has been waiting for its turn, or zero if none is.
func (b *backlog) oldest() (since time.Time) {
	for _, at := range b.late {
		if since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since
}

// inTurn sorts keys so that namespaces take turns, one object each, beginning after the last one's.
// Within a namespace those that waited longer come first.
func (b *backlog) inTurn(keys []model.Key) []model.Key {
	if len(keys) == 1 {
		return keys
	}
	queues := map[string][]model.Key{}
	var names []string
	for _, key := range keys {
		if queues[key.Namespace] == nil {
			names = append(names, key.Namespace)
		}
		queues[key.Namespace] = append(queues[key.Namespace], key)
	}
	slices.Sort(names)
	first, found := slices.BinarySearch(names, b.last)
	if found {
		first++
	}
	names = append(slices.Clone(names[first:]), names[:first]...)
	if len(b.late) > 0 {
		for _, queue := range queues {
			slices.SortStableFunc(queue, b.compare)
		}
	}
	keys = keys[:0]
	for len(names) > 0 {
		left := names[:0]
		for _, name := range names {
			queue := queues[name]
			keys = append(keys, queue[0])
			if queues[name] = queue[1:]; len(queue) > 1 {
				left = append(left, name)
			}
		}
		names = left
	}
	return keys
}

// compare orders keys by how long they have been waiting; those that have not come last.
func (b *backlog) compare(one, two model.Key) int {
	x, late := b.late[one]
	y, other := b.late[two]
	switch {
	case late && other:
		return x.Compare(y)
	case late:
		return -1
	case other:
		return 1
	}
	return 0
}
