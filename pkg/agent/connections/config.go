// Package connections looks after the connections that the programs remember: it removes flows that are over, aborts
// sockets whose backend is gone, tells the programs of route changes, and makes room.
package connections

import (
	"context"
	"log/slog"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
)

// Config is what the parts of this package need. The maps must exist.
type Config struct {
	Options *config.Config
	Path    *datapath.Datapath
	// Stale reports for each origin whether its backend is gone for good.
	Stale func(ctx context.Context, origins []maps.Origin) ([]bool, error)
	Log   *slog.Logger
}
