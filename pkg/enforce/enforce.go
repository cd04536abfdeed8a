// Package enforce writes the tables of policies to the maps by which the programs at pods' devices decide.
//
// What depends on policies stands there in two versions, and one word says which of them is in force. A change
// is written to the other version, the word is switched, and once no program reads the first version any longer
// it is made the same. So a packet meets all of a change or nothing of it, and so does an agent that was killed
// in the middle of one and starts again.
package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/pkg/ticks"
)

const (
	// adoptFor is how long a pod may have connections from before the first policy was about it.
	adoptFor = time.Hour
	// answersFor is how long its datagrams may be answers to such that came before.
	answersFor = 10 * time.Second
)

// Writer writes tables to the maps. It is not safe for concurrent use.
type Writer struct {
	maps     *maps.EnforceMaps
	barrier  *maps.Barrier
	clock    *ticks.Clock
	tick     ticks.Tick
	version  uint32 // in force
	audit    bool
	any      bool // as SetAny was told
	runs     *extents
	at       map[uint32]extent // where the runs of a decision are
	fresh    bool              // nothing was written since the start, so rows of a former agent may be left
	rows     rows              // of what is in force
	previous *previous         // nil once something was put in force
	kept     map[uint32]kept   // by the host's end of a pod's device
	grow     Grow
}

// Grow replaces a map by a larger one with the same rows, and with room for at least so many, and opens the maps
// again. It returns nil if the map grows no further.
type Grow func(name string, rows uint32) (*maps.EnforceMaps, error)

// New returns a Writer for maps that may have rows of a former agent, which stay in force until the first
// Apply. With audit, what policies deny is only reported. A map that is full grows by grow; if that is nil, none
// does. The caller must close the Writer, which closes the maps, as an error does.
func New(m *maps.EnforceMaps, audit bool, grow Grow) (*Writer, error) {
	w := &Writer{maps: m, audit: audit, grow: grow, at: map[uint32]extent{}, fresh: true}
	var err error
	if w.tick, err = ticks.Measure(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if w.clock, err = w.tick.Clock(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if w.barrier, err = maps.NewBarrier(); err != nil {
		return nil, errors.Join(err, w.clock.Close(), m.Close())
	}
	if err := w.adopt(); err != nil {
		return nil, errors.Join(fmt.Errorf("read the policies of the former agent: %w", err), w.Close())
	}
	return w, nil
}

// Close frees what the Writer holds. What is in force stays in force.
func (w *Writer) Close() error {
	return errors.Join(w.barrier.Close(), w.clock.Close(), w.maps.Close())
}

// adopt reads which version is in force, makes the other one the same, and finds the runs that are in use.
func (w *Writer) adopt() error {
	var state bpf.MapsPolicyState
	if err := w.maps.PolicyState.Lookup(uint32(0), &state); err != nil {
		return err
	}
	w.version = state.Version % 2
	w.runs = newExtents(w.maps.PolicyRuns.MaxEntries())
	level := &changes{version: w.version}
	decisions, err := all[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision](w.maps.PolicyDecisions)
	if err != nil {
		return err
	}
	for key, row := range decisions {
		level.decision(key, row.Ports[w.version], row)
		w.runs.take(extent{row.Ports[w.version].First, row.Ports[w.version].Count})
	}
	for _, m := range []*ebpf.Map{w.maps.PolicyPeers, w.maps.PolicyRegions, w.maps.PolicyViews} {
		if err := levelClasses(m, w.version); err != nil {
			return err
		}
	}
	pods, err := all[uint32, bpf.MapsPolicyPod](w.maps.PolicyPods)
	if err != nil {
		return err
	}
	for index, row := range pods {
		level.pod(index, row.Subject[w.version], row)
	}
	if err := level.settle(w.maps); err != nil {
		return err
	}
	w.previous, err = w.readPrevious(w.version)
	return err
}

// levelClasses makes the version that is not in force the same, in a map whose values are classes.
func levelClasses(m *ebpf.Map, version uint32) error {
	key, stale := make([]byte, m.KeySize()), map[string]bpf.MapsPolicyClass{}
	var row bpf.MapsPolicyClass
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		if row.Class[0] != row.Class[1] {
			stale[string(key)] = bpf.MapsPolicyClass{Class: [2]uint32{row.Class[version], row.Class[version]}}
		}
	}
	err := rows.Err()
	for key, row := range stale {
		err = errors.Join(err, m.Put([]byte(key), row))
	}
	return err
}

// all returns the rows of a map.
func all[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	out := map[K]V{}
	var key K
	var row V
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		out[key] = row
	}
	return out, rows.Err()
}

// Generation returns the highest generation in the maps. A flow may have that of a pod that is gone, and the next
// pod at its address must not get it.
func (w *Writer) Generation() (uint32, error) {
	pods, err := all[uint32, bpf.MapsPolicyPod](w.maps.PolicyPods)
	highest := uint32(0)
	for _, row := range pods {
		highest = max(highest, row.Subject[0].Generation, row.Subject[1].Generation)
	}
	err2 := w.maps.EachPolicyFlow(func(_ []maps.Flow, rows []maps.PolicyFlow) error {
		for i := range rows {
			highest = max(highest, rows[i].Generation)
		}
		return nil
	})
	return highest, errors.Join(err, err2)
}

// SetAny tells the programs whether there may be a pod that a policy is about. Without any, what the stack
// sends to pods is not looked up.
func (w *Writer) SetAny(any bool) error {
	w.any = any
	state := bpf.MapsPolicyState{Version: w.version}
	if any {
		state.Pods = 1
	}
	var have bpf.MapsPolicyState
	if err := w.maps.PolicyState.Lookup(uint32(0), &have); err != nil || have == state {
		return err
	}
	return w.maps.PolicyState.Put(uint32(0), state)
}

// Apply writes a change that has led to these tables. The pods of this node have their addresses at these
// devices. A map that is full grows. If Apply fails, all stays in force that was, and the next call writes what
// this one did not.
func (w *Writer) Apply(change *policy.Change, t *policy.Tables, devices map[netip.Addr][]uint32) error {
	for {
		err := w.apply(change, t, devices)
		var full fullError
		if !errors.As(err, &full) || w.grow == nil {
			return err
		}
		if grown, failed := w.enlarge(full.name, t); failed != nil || !grown {
			return errors.Join(err, failed)
		}
	}
}

// enlarge makes room for tables in a map that is full, and reports whether there is more now. While a change is
// written, the rows before it are there too.
func (w *Writer) enlarge(name string, t *policy.Tables) (bool, error) {
	opened, err := w.grow(name, 2*rowsOf(name, t))
	if err != nil || opened == nil {
		return false, err
	}
	smaller := w.maps
	w.maps = opened
	w.runs.extend(opened.PolicyRuns.MaxEntries())
	return true, smaller.Close()
}

func (w *Writer) apply(change *policy.Change, t *policy.Tables, devices map[netip.Addr][]uint32) error {
	fresh := w.fresh
	if w.previous != nil {
		w.keepGenerations(t, devices)
	}
	next, err := w.collect(change, t, devices)
	if err == nil {
		err = next.write(w.maps)
	}
	if err == nil {
		err = w.change(next.version)
	}
	if err != nil {
		w.fresh = true
		next.release(w.runs)
		return fmt.Errorf("write policies: %w", err)
	}
	w.previous = nil
	w.rows.follow(change, fresh, t, devices)
	if next.empty() {
		return w.forgetDenials(change, fresh)
	}
	if err := w.barrier.Wait(); err != nil {
		w.fresh = true
		return err
	}
	w.keep(next)
	if err := next.settle(w.maps); err != nil {
		w.fresh = true
		return fmt.Errorf("forget former policies: %w", err)
	}
	return w.forgetDenials(change, fresh)
}

// change puts a version in force.
func (w *Writer) change(version uint32) error {
	var state bpf.MapsPolicyState
	if err := w.maps.PolicyState.Lookup(uint32(0), &state); err != nil {
		return err
	}
	state.Version = version
	if err := w.maps.PolicyState.Put(uint32(0), state); err != nil {
		return err
	}
	w.version = version
	return nil
}

// keep takes over where runs are now.
func (w *Writer) keep(next *changes) {
	w.fresh = false
	for _, old := range next.freed {
		w.runs.give(old)
	}
	for number, e := range next.placed {
		w.at[number] = e
	}
	for _, number := range next.unplaced {
		delete(w.at, number)
	}
}
