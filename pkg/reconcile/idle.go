package reconcile

import (
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	// idleAfter is how long a Service may be without endpoints before that is reported. The
	// endpoints of a new Service come a moment after it, and those of a rollout may be late.
	idleAfter = time.Minute

	// maxIdle bounds how many Services are reported at a time, once a minute. When the pods of a
	// whole namespace go, that is one piece of news and not a thousand.
	maxIdle = 32
)

// noteIdle adds a problem if a Service has had no endpoint in use for long, or records when it lost
// its last one.
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

// isIdle reports whether no port of a Service has an endpoint. Services that only this node's
// endpoints may serve are not idle: it is normal for a node to have none.
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

// markIdle makes Services due that have had no endpoints for long, so that they get the problem.
func (r *Reconciler) markIdle(now time.Time) {
	if !r.synced {
		return // their endpoints may simply not have arrived yet
	}
	var due []model.Key
	for key, since := range r.idle {
		if o := r.objects.known[key]; o != nil && now.Sub(since) >= idleAfter {
			o.idle = true
			due = append(due, key)
		}
		if len(due) == maxIdle {
			break
		}
	}
	for _, key := range due {
		delete(r.idle, key)
	}
	r.cfg.Store.MarkDirty(due...)
}
