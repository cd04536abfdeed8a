package main

import (
	"context"
	"errors"
	"log/slog"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/sockets"
)

// startSweeper starts aborting sockets in the node's own network namespace whose backend is gone
// for good, and returns the function to call when backends leave. On a kernel that cannot abort
// sockets, connections still work; the log and the status say so.
func (a *agent) startSweeper(start func(string, func(context.Context) error), log *slog.Logger) func(model.Protocol) {
	sweeper, peers, err := a.newSweeper(log)
	a.mu.Lock()
	a.sweeper, a.cannotSweep = sweeper, err != nil
	a.mu.Unlock()
	if err != nil {
		log.Warn("cannot abort sockets whose backend is gone for good", "error", err)
		return nil
	}
	start("sockets", func(ctx context.Context) error {
		return errors.Join(sweeper.Run(ctx), sweeper.Close(), peers.Close())
	})
	return sweeper.Left
}

func (a *agent) newSweeper(log *slog.Logger) (*sockets.Sweeper, *datapath.Peers, error) {
	streams := a.cfg.ResetStaleTCP == "true"
	peers, err := a.path.Peers(streams)
	if err != nil {
		return nil, nil, err
	}
	node, err := sockets.Open()
	if err != nil {
		return nil, nil, errors.Join(err, peers.Close())
	}
	protocols := []model.Protocol{model.UDP}
	if streams {
		protocols = append(protocols, model.TCP)
	}
	sweeper := sockets.NewSweeper(sockets.Config{Records: peers, Protocols: protocols, Stale: a.stale, Log: log})
	return sweeper, peers, sweeper.Add("node", node)
}

// currentSweeper returns the sweeper, or nil until there is one and if there is none.
func (a *agent) currentSweeper() *sockets.Sweeper {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sweeper
}

// sweeps reports whether the kernel can abort sockets, as far as is known.
func (a *agent) sweeps() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.cannotSweep && (a.sweeper == nil || a.sweeper.Stats().LastError == "")
}

// stale asks the reconciler, which knows the backends.
func (a *agent) stale(ctx context.Context, peers []maps.Peer) ([]bool, error) {
	r := a.current()
	if r == nil {
		return make([]bool, len(peers)), nil
	}
	return r.Stale(ctx, peers)
}
