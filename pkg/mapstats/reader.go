package mapstats

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
)

// Reader reads the state of the pinned maps without listing their rows, however many there are. The
// exceptions are the maps whose rows only programs make: these it counts now and then. It is safe for
// concurrent use.
type Reader struct {
	dir            string
	hooks, reasons []string
	lruCounts      *lruCounts
	rowCounts      *rowCounts

	mu      sync.Mutex
	refused *recent // packets that found no SNAT port; nil before the first look
}

// NewReader returns a Reader of the maps pinned in dir, which need not exist yet.
func NewReader(dir string) (*Reader, error) {
	hooks, reasons, err := reasons.Words()
	if err != nil {
		return nil, err
	}
	return &Reader{dir: dir, hooks: hooks, reasons: reasons, lruCounts: newLruCounts(), rowCounts: newRowCounts()}, nil
}

// Reading is what a Reader reads: the state of every map, with entries counted only for the maps
// whose rows only programs make, and the counters of the programs.
type Reading struct {
	Maps      []Map
	Counters  []reasons.Counter
	Fragments Fragments
	Snat      SnatPorts // without its uses
	// Unpinned are the paths of pins that are gone, or are of something else, which is then said.
	// Maps lacks their maps.
	Unpinned []string
}

// Read returns the present state. It opens the pins each time: an open map keeps its memory even
// after a larger one has replaced it. A pin that cannot be opened is no error unless none
// can.
func (g *Reader) Read() (r Reading, err error) {
	for _, info := range (&maps.Maps{}).All() {
		if err := g.readMap(info, &r); err != nil {
			return Reading{}, err
		}
	}
	if len(r.Maps) == 0 {
		return r, fmt.Errorf("open maps in %s: no pin can be opened: %w", g.dir, fs.ErrNotExist)
	}
	r.Snat = g.snat(refusedForPorts(r.Counters), time.Now())
	return r, g.readLruCounts(r.Maps)
}

// snat returns how many packets found no SNAT port lately.
func (g *Reader) snat(refused uint64, now time.Time) (s SnatPorts) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused == nil {
		first := newRecent(refused, now)
		g.refused = &first
	}
	g.refused.count(refused, now)
	if s.RefusedLately = g.refused.lately(now); s.RefusedLately > 0 {
		s.RefusedEnd = g.refused.over()
	}
	return s
}

func (g *Reader) readMap(info maps.Info, r *Reading) (err error) {
	pin := filepath.Join(g.dir, info.Name)
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		r.Unpinned = append(r.Unpinned, pin)
		return nil
	}
	if err != nil { // something else is there
		r.Unpinned = append(r.Unpinned, fmt.Sprintf("%s (%v)", pin, err))
		return nil
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	kernel, err := m.Info()
	if err != nil {
		return fmt.Errorf("inspect map %s: %w", info.Name, err)
	}
	status := Map{
		Name: info.Name, Type: m.Type().String(), Row: info.Row, WrittenBy: info.WrittenBy, ReadBy: info.ReadBy,
		Capacity: m.MaxEntries(), Pin: pin, Schema: filepath.Base(filepath.Dir(g.dir)),
	}
	status.Memory, _ = kernel.Memlock()
	rows, counts, err := g.rowCounts.of(m, info.Name)
	if err != nil {
		return err
	}
	if counts {
		status.SetEntries(rows)
	}
	r.Maps = append(r.Maps, status)
	switch info.Name {
	case "counters":
		r.Counters, err = reasons.CountersNamed(m, g.hooks, g.reasons)
	case "early_tally":
		r.Fragments, err = readFragments(m)
	}
	return err
}
