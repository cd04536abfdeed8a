package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
)

// rig is a Reconciler over real maps that are not pinned and not read by any program.
type rig struct {
	store      *model.Store
	maps       *maps.Maps
	tables     *maps.Tables
	barrier    *maps.Barrier
	reconciler *reconcile.Reconciler
}

func newRig(store *model.Store) (*rig, error) {
	r := &rig{store: store}
	sizes, err := maps.MinSizes().AtLeast(reconcile.Estimate(store)).Round()
	if err != nil {
		return nil, err
	}
	if r.maps, err = maps.Create(sizes); err != nil {
		return nil, err
	}
	if r.tables, err = r.maps.Tables(); err != nil {
		return nil, err
	}
	if r.barrier, err = maps.NewBarrier(); err != nil {
		return nil, err
	}
	r.reconciler, err = reconcile.New(reconcile.Config{
		Store: store,
		Tables: &reconcile.Tables{
			Frontends: r.tables.Svcs, Ranges: r.tables.Ranges, Services: r.tables.Services, Slots: r.tables.Slots,
			Backends: r.tables.Backends, Names: r.tables.Names,
		},
		Facts:   lb.Facts{ExternalIPs: lb.ExternalIPsAll},
		Barrier: r.barrier.Wait,
		Grow: func(maps.Sizes) (*reconcile.Tables, error) {
			return nil, fmt.Errorf("the estimate of the sizes was too small")
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	return r, err
}

func (r *rig) close() error { return errors.Join(r.tables.Close(), r.maps.Close(), r.barrier.Close()) }
