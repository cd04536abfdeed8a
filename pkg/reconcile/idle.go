package reconcile

import (
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	// idleAfter is how long a Service may have no endpoints before its author is told: those of a new Service come a
	// moment after it, and those of a rollout may be late.
	idleAfter = time.Minute

	// maxIdle is how many are told of at a time, once a minute. When the pods of a whole namespace go, that is one piece
	// of news and not a thousand.
	maxIdle = 32
)

// noteIdle adds the problem of a Service that has had no endpoint in use for long, or notes since when it has none.
func (r *Reconciler) noteIdle(o *object, wanted *lb.Wanted) {
	if !isIdle(o, wanted) {
		delete(r.idle, o.key)
		o.idle = false
		return
	}
	if o.idle {
		wanted.Problems = append(wanted.Problems, model.Problem{
			Reason:  "NoEndpoints",
			Message: "no endpoint is ready, so connections are refused: check that the selector matches pods, and that they become ready",
		})
		return
	}
	if _, noted := r.idle[o.key]; !noted {
		r.idle[o.key] = time.Now()
	}
}

// isIdle reports whether nothing stands behind any port of a Service. What only this node's endpoints may serve is left
// out: it is ordinary that a node has none.
func isIdle(o *object, wanted *lb.Wanted) bool {
	if o.key.Kind != model.KindService || len(wanted.Services) == 0 {
		return false
	}
	for i := range wanted.Services {
		s := &wanted.Services[i]
		if s.Flags&maps.InternalLocal != 0 || len(s.Tables[maps.ScopeAll]) > 0 {
			return false
		}
	}
	return true
}

// tellIdle has those applied again that have had no endpoints for long.
func (r *Reconciler) tellIdle(now time.Time) {
	if !r.synced {
		return // their endpoints may just not have come
	}
	var told []model.Key
	for key, since := range r.idle {
		if o := r.objects[key]; o != nil && now.Sub(since) >= idleAfter {
			o.idle = true
			told = append(told, key)
		}
		if len(told) == maxIdle {
			break
		}
	}
	for _, key := range told {
		delete(r.idle, key)
	}
	r.cfg.Store.MarkDirty(told...)
}
