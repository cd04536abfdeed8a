package main

import (
	"context"
	"errors"
	"log/slog"

	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/routes"
)

// startFollower starts telling the programs of route changes. Without it, every flow looks up its
// route once a second, which costs more and changes nothing else; the log and the status say so.
func (a *agent) startFollower(start func(string, func(context.Context) error), log *slog.Logger) {
	ways, err := a.path.Ways()
	if err != nil {
		a.mu.Lock()
		a.cannotFollow = err.Error()
		a.mu.Unlock()
		log.Error("cannot follow route changes", "error", err)
		return
	}
	follower := routes.NewFollower(routes.Config{Ways: ways, Log: log})
	a.mu.Lock()
	a.follower = follower
	a.mu.Unlock()
	start("routes", func(ctx context.Context) error { return errors.Join(follower.Run(ctx), ways.Close()) })
}

// routeStats returns the follower's counts, which are zero until there is one, and its last error
// or why there is none.
func (a *agent) routeStats() (stats routes.Stats, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.follower == nil {
		return routes.Stats{}, a.cannotFollow
	}
	stats = a.follower.Stats()
	return stats, stats.LastError
}

// wayStatus returns whether route changes are followed, or nil before that is known.
func (a *agent) wayStatus() *observe.WayStatus {
	stats, why := a.routeStats()
	if !stats.Following && why == "" {
		return nil
	}
	return &observe.WayStatus{
		Following: stats.Following, Changes: stats.Changes, LastChange: stats.LastChange, Neighbours: stats.Neighbours,
		IsCrowded: stats.IsOverflown, Error: why,
	}
}
