package reconcile

import (
	"context"
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// maxOrigins is how many origins are judged between two passes. A change of endpoints never waits for
// more.
const maxOrigins = 1024

var errStaleEnded = errors.New("judge origins: the agent is shutting down")

// question asks which origins have lost their backend.
type question struct {
	origins []maps.Origin
	answer  chan []bool // buffered, so that answering never blocks
}

// staleness answers questions between passes.
type staleness struct {
	*frontendRows
	objects   *objects
	questions chan question
	ended     <-chan struct{} // closed when Run has ended
}

// Stale reports for each origin whether its backend is gone for good according to the latest objects.
// A origin is stale if the dialed frontend still exists and the backend may not even keep existing
// connections, or, for UDP, if the dialed frontend is gone. If the Service of a stream is gone,
// nothing says that its backend is, so the stream is not stale.
//
// Another Service may still have the backend; that does not help a client that dialed this one.
// Nothing is stale before the sources are complete. Stale is safe for concurrent use; it waits for
// its turn in Run. The error is the context's, or says that Run has ended.
func (r *Reconciler) Stale(ctx context.Context, origins []maps.Origin) ([]bool, error) {
	return r.stale.ask(ctx, origins)
}

func (r *staleness) ask(ctx context.Context, origins []maps.Origin) ([]bool, error) {
	var stale []bool
	for len(origins) > 0 {
		part := origins[:min(len(origins), maxOrigins)]
		q := question{part, make(chan []bool, 1)}
		select {
		case r.questions <- q:
			stale = append(stale, <-q.answer...)
		case <-r.ended:
			return nil, errStaleEnded
		case <-ctx.Done():
			return nil, fmt.Errorf("judge origins: %w", context.Cause(ctx))
		}
		origins = origins[len(part):]
	}
	return stale, nil
}

func (r *staleness) areStale(origins []maps.Origin) []bool {
	stale := make([]bool, len(origins))
	if !r.synced {
		return stale
	}
	known := map[*service]*lb.Allowed{} // nil for a service whose object is gone
	for i, origin := range origins {
		var kept *lb.Allowed
		if s := r.serviceOf(origin.Dialed); s != nil {
			var ok bool
			if kept, ok = known[s]; !ok {
				kept = r.objects.allowedBy(s)
				known[s] = kept
			}
		}
		switch {
		case kept != nil:
			stale[i] = !kept.Has(origin.Backend)
		case len(r.objects.failed) == 0: // a failed object may be about to get the dialed frontend
			stale[i] = model.Protocol(origin.Dialed.Proto) == model.UDP
		}
	}
	return stale
}

// serviceOf returns the service that owns a frontend, looked up as the programs do: by address,
// then by node port.
func (r *staleness) serviceOf(key maps.SvcKey) *service {
	if owner := r.frontends.keys[key].owner; owner.service != nil {
		return owner.service
	}
	key.Addr = maps.AddrOf(model.FamilyOf(maps.NetipOf(key.Addr)).Unspecified())
	return r.frontends.keys[key].owner.service
}

// reportLeft reports the protocols of which something left in this pass.
func (r *Reconciler) reportLeft() {
	if r.synced && r.cfg.Left != nil {
		for protocol := range r.left {
			r.cfg.Left(protocol)
		}
	}
	clear(r.left)
}
