package mapstats

import (
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
)

// rowCounts caches the row counts of the maps that programs write and nothing else counts, for a Reader, as
// lruCounts does.
type rowCounts struct {
	mu    sync.Mutex
	known map[string]rowCount
	now   func() time.Time
}

type rowCount struct {
	rows int
	at   time.Time
	took time.Duration
}

func newRowCounts() *rowCounts { return &rowCounts{known: map[string]rowCount{}, now: time.Now} }

// of returns how many rows a map has, or had at the last count. counts is false for other maps.
func (c *rowCounts) of(m *ebpf.Map, name string) (rows int, counts bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := c.now()
	if k, found := c.known[name]; found && start.Sub(k.at) < max(lruCountsEvery, lruCountsRest*k.took) {
		return k.rows, true, nil
	}
	if rows, counts, err = maps.CountRows(m, name); counts && err == nil {
		c.known[name] = rowCount{rows, start, c.now().Sub(start)}
	}
	return rows, counts, err
}
