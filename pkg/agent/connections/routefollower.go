package connections

import (
	"context"
	"errors"

	"fairlead.io/fairlead/pkg/routes"
)

// RouteFollower tells the programs of route changes. Without it, every flow looks up its route once a second,
// which costs more and changes nothing else; the log and the status say so.
type RouteFollower struct {
	running *routes.Follower // nil if there is none
	why     string           // why there is none
	close   func() error
}

// NewRouteFollower returns a follower, which says in its status if it cannot work.
func NewRouteFollower(cfg *Config) *RouteFollower {
	ways, err := cfg.Path.RouteEpoch()
	if err != nil {
		cfg.Log.Error("cannot follow route changes", "error", err)
		return &RouteFollower{why: err.Error()}
	}
	return &RouteFollower{running: routes.NewFollower(routes.Config{Lease: ways, Log: cfg.Log}), close: ways.Close}
}

// Run follows routes until the context ends.
func (f *RouteFollower) Run(ctx context.Context) error {
	if f.running == nil {
		return nil
	}
	return errors.Join(f.running.Run(ctx), f.close())
}

// Status returns whether route changes are followed. Known is false before that is decided.
func (f *RouteFollower) Status() (status routes.Status, known bool) {
	switch {
	case f == nil:
		return status, false
	case f.running == nil:
		return routes.Status{Error: f.why}, true
	}
	status = f.running.Status()
	return status, status.Following || status.Error != ""
}
