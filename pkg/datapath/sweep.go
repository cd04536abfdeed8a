package datapath

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
)

// sweeps is how often Sweep runs.
const sweeps = 15 * time.Second

// Sweep deletes expired rows from the maps that evict, other than those of flows: clients whose
// affinity lapsed long ago, and datagrams that will never be complete. The rows that remain show
// how much room is needed. It also deletes flows that policies have judged and that are over.
func (d *Datapath) Sweep() error {
	tick, err := ticks.Measure()
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
	if _, err := progs.Programs[bpf.SweepProgSweepPolicyFlows].Run(run); err != nil {
		return fmt.Errorf("sweep map policy_flows: %w", err)
	}
	return nil
}

// loadSweep loads the programs over the maps in use.
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

// WatchRows calls Sweep regularly until the context ends, and gives clients with session affinity
// more room as their number grows, up to mostClients. It logs a failure only once: eviction starts
// with the rows unused for longest, so the effect is mild.
func (d *Datapath) WatchRows(ctx context.Context, mostClients uint32) error {
	again := time.NewTicker(sweeps)
	defer again.Stop()
	logged := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
		err := errors.Join(d.Sweep(), d.followClients(mostClients))
		if err != nil && !logged && !errors.Is(err, ErrNoMaps) {
			d.log.Warn("cannot sweep or enlarge the maps that evict rows: rows still in use may be evicted", "error", err)
			logged = true
		}
	}
}
