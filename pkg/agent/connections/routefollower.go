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
	ways, err := cfg.Path.Ways()
	if err != nil {
		cfg.Log.Error("cannot follow route changes", "error", err)
		return &RouteFollower{why: err.Error()}
	}
	return &RouteFollower{running: routes.NewFollower(routes.Config{Ways: ways, Log: cfg.Log}), close: ways.Close}
}

// Run follows routes until the context ends.
func (f *RouteFollower) Run(ctx context.Context) error {
	if f.running == nil {
		return nil
	}
	return errors.Join(f.running.Run(ctx), f.close())
}

// Stats returns the follower's counts, and its last error or why there is none. A nil follower has neither.
func (f *RouteFollower) Stats() (stats routes.Stats, why string) {
	if f == nil {
		return routes.Stats{}, ""
	}
	if f.running == nil {
		return routes.Stats{}, f.why
	}
	stats = f.running.Stats()
	return stats, stats.LastError
}

// Status returns whether route changes are followed, or nil before that is known.
func (f *RouteFollower) Status() *routes.Status {
	stats, why := f.Stats()
	if !stats.Following && why == "" {
		return nil
	}
	return &routes.Status{
		Following: stats.Following, Changes: stats.Changes, LastChange: stats.LastChange, Neighbors: stats.Neighbors,
		IsCrowded: stats.IsOverflown, Error: why,
	}
}
