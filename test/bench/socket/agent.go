package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// agent is what is left of an agent that has served a fleet and ended: programs and full maps.
type agent struct {
	hooks hookList
	maps  *maps.Maps
}

// newAgent loads the product's programs as the product does, and lets its reconciler fill the maps.
func newAgent(f fleet) (_ *agent, err error) {
	bpffs, unmount, err := rig.MountBPFFS()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	cgroup, err := rig.CreateCgroup()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cgroup.Close()) }()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	store := model.NewStore("node-0")
	f.deliver(store)

	var d *datapath.Datapath
	err = limited.Do(func() error {
		if d, err = datapath.Open(datapath.Config{BPFFS: bpffs, CgroupRoot: cgroup.Path(), Log: log}); err != nil {
			return err
		}
		return errors.Join(d.Create(reconcile.Estimate(store)), d.Attach())
	})
	if d != nil {
		defer func() {
			_, left := datapath.Cleanup(bpffs)
			err = errors.Join(err, d.Close(), left)
		}()
	}
	if err != nil {
		return nil, err
	}
	if err := fill(d.Tables(), store, log); err != nil {
		return nil, err
	}
	return takeOver(d, datapath.MapsDir(bpffs))
}

// fill writes the contents of the store to the maps.
func fill(t *maps.Tables, store *model.Store, log *slog.Logger) error {
	barrier, err := maps.NewBarrier()
	if err != nil {
		return err
	}
	r, err := reconcile.New(reconcile.Config{
		Store: store, Log: log, Barrier: barrier.Wait, Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll},
		Tables: &reconcile.Tables{Frontends: t.Svcs, Ranges: t.Ranges, Services: t.Services, Slots: t.Slots, Backends: t.Backends, Names: t.Names},
		Grow: func(maps.Sizes) (*reconcile.Tables, error) {
			return nil, errors.New("the estimate of the sizes was too small")
		},
	})
	if err == nil {
		err = r.Drain()
	}
	return errors.Join(err, barrier.Close())
}

// takeOver keeps the programs and the maps after the agent has ended, so that the programs can be
// attached for a run and detached after it. It opens programs by ID, which needs more capabilities
// than the agent has.
func takeOver(d *datapath.Datapath, pins string) (*agent, error) {
	a := &agent{}
	opened, err := maps.Open(pins, false)
	if err != nil {
		return nil, err
	}
	a.maps = opened
	status, err := d.Status()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	spec, err := bpf.LoadSock()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	for _, p := range status.Programs {
		if !p.Attached {
			continue
		}
		program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("take over program %s: %w", p.Name, err), a.Close())
		}
		a.hooks = append(a.hooks, hook{program, spec.Programs[p.Name].AttachType})
	}
	return a, nil
}

// Close closes the programs and the maps.
func (a *agent) Close() error { return errors.Join(a.maps.Close(), a.hooks.Close()) }
