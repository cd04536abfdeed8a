package datapath

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// sweeps is how often rows that are over are taken out.
const sweeps = 15 * time.Second

// Sweep takes rows that are over out of the maps that push out what they have no room for, apart from those of flows:
// clients whose affinity has lapsed long ago, and datagrams that will not be complete any more. What is left tells how
// much room is needed.
func (d *Datapath) Sweep() error {
	tick, err := MeasureTick()
	if err != nil {
		return err
	}
	progs, err := d.loadSweep()
	if err != nil {
		return fmt.Errorf("sweep maps: %w", err)
	}
	defer progs.Close()
	if _, err := progs.Programs[bpf.SweepProgSweepAffinity].Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("sweep map affinity: %w", err)
	}
	run := &ebpf.RunOptions{Context: &maps.SweepRun{TickShift: tick.Shift}}
	if _, err := progs.Programs[bpf.SweepProgSweepFrags].Run(run); err != nil {
		return fmt.Errorf("sweep map frags: %w", err)
	}
	return nil
}

// loadSweep loads the programs over the maps that are in force now.
func (d *Datapath) loadSweep() (*ebpf.Collection, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, ErrNoMaps
	}
	spec, err := bpf.LoadSweep()
	if err != nil {
		return nil, fmt.Errorf("read program specs: %w", err)
	}
	return loadOver(d.maps, spec)
}

// WatchRows sweeps until the context ends, and gives clients with session affinity more room as they become more, up to so
// many. That it cannot is told once: what is pushed out first has not been used for longest, so nobody is worse off than
// without.
func (d *Datapath) WatchRows(ctx context.Context, mostClients uint32) error {
	again := time.NewTicker(sweeps)
	defer again.Stop()
	told := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
		err := errors.Join(d.Sweep(), d.followClients(mostClients))
		if err != nil && !told && !errors.Is(err, ErrNoMaps) {
			d.log.Warn("maps that push rows out are not looked after, and may push out what is not over", "error", err)
			told = true
		}
	}
}
