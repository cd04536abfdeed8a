package observe

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
)

// Gauge reads what can be told of pinned maps without listing their rows, however many there are.
type Gauge struct {
	dir            string
	hooks, reasons []string
}

// NewGauge returns a Gauge of the maps pinned in dir, now or later.
func NewGauge(dir string) (*Gauge, error) {
	hooks, reasons, err := counterWords()
	if err != nil {
		return nil, err
	}
	return &Gauge{dir, hooks, reasons}, nil
}

// Read returns the state of every map, without the rows in use, and the counters. It opens the pins anew each time:
// whoever keeps a map open keeps its memory, also when it was replaced by a larger one.
func (g *Gauge) Read() (statuses []MapStatus, counters []Counter, err error) {
	for _, info := range (&maps.Maps{}).All() {
		status, counted, err := g.readMap(info)
		if err != nil {
			return nil, nil, err
		}
		statuses = append(statuses, status)
		counters = append(counters, counted...)
	}
	return statuses, counters, nil
}

func (g *Gauge) readMap(info maps.Info) (status MapStatus, counters []Counter, err error) {
	pin := filepath.Join(g.dir, info.Name)
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return status, nil, fmt.Errorf("open map %s: %w", pin, err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	kernel, err := m.Info()
	if err != nil {
		return status, nil, fmt.Errorf("inspect map %s: %w", info.Name, err)
	}
	status = MapStatus{
		Name: info.Name, Type: m.Type().String(), Row: info.Row, WrittenBy: info.WrittenBy, ReadBy: info.ReadBy,
		Capacity: m.MaxEntries(), Pin: pin, Schema: filepath.Base(filepath.Dir(g.dir)),
	}
	status.Memory, _ = kernel.Memlock()
	if info.Name == "counters" {
		counters, err = readCounters(m, g.hooks, g.reasons)
	}
	return status, counters, err
}
