package observe

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
)

// Gauge reads the state of the pinned maps without listing their rows, however many there are. The
// exception are the maps that evict rows, whose rows it counts now and then. It is safe for
// concurrent use.
type Gauge struct {
	dir            string
	hooks, reasons []string
	census         *census
}

// NewGauge returns a Gauge of the maps pinned in dir, which need not exist yet.
func NewGauge(dir string) (*Gauge, error) {
	hooks, reasons, err := counterWords()
	if err != nil {
		return nil, err
	}
	return &Gauge{dir, hooks, reasons, newCensus()}, nil
}

// Reading is what a Gauge reads: the state of every map, with entries counted only for the maps
// that evict rows, and the counters of the programs.
type Reading struct {
	Maps      []MapStatus
	Counters  []Counter
	Fragments FragmentStatus
}

// Read returns the present state. It opens the pins each time: an open map keeps its memory even
// after a larger one has replaced it.
func (g *Gauge) Read() (r Reading, err error) {
	for _, info := range (&maps.Maps{}).All() {
		if err := g.readMap(info, &r); err != nil {
			return Reading{}, err
		}
	}
	return r, g.readCensus(r.Maps)
}

func (g *Gauge) readMap(info maps.Info, r *Reading) (err error) {
	pin := filepath.Join(g.dir, info.Name)
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open map %s: %w", pin, err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	kernel, err := m.Info()
	if err != nil {
		return fmt.Errorf("inspect map %s: %w", info.Name, err)
	}
	status := MapStatus{
		Name: info.Name, Type: m.Type().String(), Row: info.Row, WrittenBy: info.WrittenBy, ReadBy: info.ReadBy,
		Capacity: m.MaxEntries(), Pin: pin, Schema: filepath.Base(filepath.Dir(g.dir)),
	}
	status.Memory, _ = kernel.Memlock()
	r.Maps = append(r.Maps, status)
	switch info.Name {
	case "counters":
		r.Counters, err = readCounters(m, g.hooks, g.reasons)
	case "late_tally":
		r.Fragments, err = readFragments(m)
	}
	return err
}
