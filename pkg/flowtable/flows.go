// Package flowtable reads and deletes rows of flows, writes rows for connections that the stack
// already translated, and hands flows back to the stack when the programs go.
package flowtable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// Flows gives access to the flow maps: the maps themselves, the clock by which the programs write
// timestamps, and the programs that delete flows. It holds its own references, so it outlives its
// Datapath. Only Jiffies and Close are safe for concurrent use.
type Flows struct {
	mu     sync.Mutex // guards the shared arrays doomed and run
	open   *ebpf.Map
	half   *ebpf.Map
	opened *ebpf.Map // nil if not counted
	counts *ebpf.Map // lru_stats: counts deleted rows
	doomed *maps.Array[maps.Doomed]
	run    *maps.Array[maps.CollectRun]
	progs  *ebpf.Collection
	buffer maps.FlowBuffer

	copying *atomic.Bool // flows are in two maps; nil if unknown
}

// ErrCopying is wrapped by the error of Collect while flows are in two maps because a growth was
// interrupted.
var ErrCopying = errors.New("flows are being carried over to a larger map")

// New returns a Flows over the given maps, which the caller still owns.
func New(m *maps.Maps) (*Flows, error) {
	open, err := m.Ct.Clone()
	if err != nil {
		return nil, fmt.Errorf("duplicate map ct: %w", err)
	}
	half, err := m.CtPending.Clone()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("duplicate map ct_pending: %w", err), open.Close())
	}
	counts, err := m.LruStats.Clone()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("duplicate map lru_stats: %w", err), open.Close(), half.Close())
	}
	return newFlows(open, half, counts)
}

// NewLive is New for the maps of an agent, which may be copied to others: copying says when.
// It also counts the flows that are established.
func NewLive(m *maps.Maps, copying *atomic.Bool) (*Flows, error) {
	flows, err := New(m)
	if err != nil {
		return nil, err
	}
	flows.copying = copying
	if flows.opened, err = m.CtOpened.Clone(); err != nil {
		return nil, errors.Join(fmt.Errorf("duplicate map ct_opened: %w", err), flows.Close())
	}
	return flows, nil
}

// Open returns a Flows over the maps pinned in dir. The caller must close it.
func Open(dir string) (*Flows, error) {
	open, half, err := maps.OpenFlows(dir, false)
	if err != nil {
		return nil, err
	}
	counts, err := maps.OpenLruStats(dir, false)
	if err != nil {
		return nil, errors.Join(err, open.Close(), half.Close())
	}
	return newFlows(open, half, counts)
}

// Moved reports whether established flows have moved to another map than Open found in dir, or
// are about to. If so, what was done to the flows may have missed some.
func (f *Flows) Moved(dir string) (bool, error) {
	open, half, err := maps.OpenFlows(dir, true)
	if err != nil {
		return false, err
	}
	defer open.Close()
	defer half.Close()
	before, err := f.open.Info()
	now, nowErr := open.Info()
	if err := errors.Join(err, nowErr); err != nil {
		return false, fmt.Errorf("inspect map ct: %w", err)
	}
	was, _ := before.ID()
	is, _ := now.ID()
	_, err = os.Stat(filepath.Join(filepath.Dir(dir), maps.GrowthDir))
	return was != is || err == nil, nil
}

// newFlows takes ownership of the maps.
func newFlows(open, half, counts *ebpf.Map) (f *Flows, err error) {
	f = &Flows{open: open, half: half, counts: counts}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
			f = nil
		}
	}()
	spec, err := bpf.LoadCollect()
	if err != nil {
		return f, fmt.Errorf("read program specs: %w", err)
	}
	replacements := map[string]*ebpf.Map{"ct": f.open, "ct_pending": f.half, "lru_stats": f.counts}
	for _, info := range (&maps.Maps{}).All() {
		if replacement, ok := replacements[info.Name]; ok {
			spec.Maps[info.Name].MaxEntries = replacement.MaxEntries()
		} else {
			delete(spec.Maps, info.Name) // otherwise it would be created
		}
	}
	f.progs, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return f, bpf.LoadError(err)
	}
	if f.doomed, err = maps.MapArray[maps.Doomed](f.progs.Maps[bpf.CollectMapDoomed], true); err != nil {
		return f, err
	}
	f.run, err = maps.MapArray[maps.CollectRun](f.progs.Maps[bpf.CollectMapRun], true)
	return f, err
}

// Capacity returns how many rows fit, of established or of half-open flows.
func (f *Flows) Capacity(half bool) int { return int(f.rows(half).MaxEntries()) }

func (f *Flows) rows(half bool) *ebpf.Map {
	if half {
		return f.half
	}
	return f.open
}

// Each calls visit with the rows of established or of half-open flows; see maps.EachFlow.
func (f *Flows) Each(half bool, visit func([]maps.Flow, []maps.FlowRow) error) error {
	return maps.EachFlow(f.rows(half), &f.buffer, visit)
}

// Opened returns how many flows were ever established, or 0 if they are not counted.
func (f *Flows) Opened() (uint64, error) {
	if f.opened == nil {
		return 0, nil
	}
	var counts []uint64
	if err := f.opened.Lookup(uint32(0), &counts); err != nil {
		return 0, fmt.Errorf("read how many flows were established: %w", err)
	}
	var all uint64
	for _, n := range counts {
		all += n
	}
	return all, nil
}

// Jiffies returns the current time of the programs' clock.
func (f *Flows) Jiffies() (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.collect(false, 0)
}

// Collect deletes flows and sets the outcome of each. It deletes both rows of a flow or none, and
// checks them again before: a flow doomed as idle is spared if it was used since. The clock's ticks
// are 2^shift jiffies.
func (f *Flows) Collect(half bool, shift uint32, limits *maps.FlowLimits, list []maps.Doomed) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.copying != nil && f.copying.Load() {
		return fmt.Errorf("delete flows: %w", ErrCopying)
	}
	run := &f.run.Rows()[0]
	run.Limits, run.TickShift = *limits, shift
	for len(list) > 0 {
		n := copy(f.doomed.Rows(), list)
		if _, err := f.collect(half, n); err != nil {
			return fmt.Errorf("delete flows: %w", err)
		}
		copy(list, f.doomed.Rows()[:n])
		list = list[n:]
	}
	return nil
}

// collect runs a program over the first n doomed flows and returns the time in jiffies.
func (f *Flows) collect(half bool, n int) (uint64, error) {
	run := &f.run.Rows()[0]
	run.Count = uint32(n)
	name := bpf.CollectProgCollectFromCt
	if half {
		name = bpf.CollectProgCollectFromPending
	}
	if _, err := f.progs.Programs[name].Run(&ebpf.RunOptions{}); err != nil {
		return 0, fmt.Errorf("run %s: %w", name, err)
	}
	return run.Jiffies, nil
}

// Close closes the maps and programs.
func (f *Flows) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	if f.doomed != nil {
		errs = append(errs, f.doomed.Close())
	}
	if f.run != nil {
		errs = append(errs, f.run.Close())
	}
	if f.progs != nil {
		f.progs.Close()
	}
	for _, m := range []*ebpf.Map{f.open, f.half, f.opened, f.counts} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
