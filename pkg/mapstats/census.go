package mapstats

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/phrase"
)

const (
	// lruCountsEvery is the shortest time between two counts of a map's rows. If a count takes long,
	// the pause is at least lruCountsRest times as long.
	lruCountsEvery = 10 * time.Second
	lruCountsRest  = 50
)

// lruCounts caches the row counts of the maps that evict rows, for a Reader: counting has to visit
// every row.
type lruCounts struct {
	mu    sync.Mutex
	known map[string]*counted
	now   func() time.Time
}

type counted struct {
	maps.LruCounts
	at        time.Time
	took      time.Duration
	evictions recent
}

func newLruCounts() *lruCounts { return &lruCounts{known: map[string]*counted{}, now: time.Now} }

// of returns what is known of a map and how many of its rows were evicted lately. It counts again
// if it is time to and rows have come or gone. The number of evictions never decreases.
func (c *lruCounts) of(lruStats, m *ebpf.Map, name string) (counted, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := c.now()
	k := c.known[name]
	if k != nil && start.Sub(k.at) < max(lruCountsEvery, lruCountsRest*k.took) {
		return *k, k.evictions.lately(start), nil
	}
	if k != nil {
		is, err := maps.ReadLruStats(lruStats, name)
		if err != nil {
			return counted{}, 0, err
		}
		if is == k.LruStats {
			k.at = start
			return *k, k.evictions.lately(start), nil
		}
	}
	found, err := maps.TakeLruCounts(lruStats, m, name)
	if err != nil {
		return counted{}, 0, err
	}
	if k == nil {
		k = &counted{evictions: newRecent(found.Evicted, start)}
		c.known[name] = k
	}
	k.evictions.count(found.Evicted, start)
	found.Evicted = k.evictions.is
	k.LruCounts, k.at, k.took = found, start, c.now().Sub(start)
	return *k, k.evictions.lately(start), nil
}

// nearlyFull is the fill level from which a status reports that a map is nearly full.
const nearlyFull = 0.9

// crowdedOut is the fraction of a map's rows that must be evicted within a minute or two to be
// worth reporting: the first rows to go are those that nobody has used for long.
const crowdedOut = 0.01

// overBy returns the sentence that says when a trouble of the last minutes is over.
func overBy(unless string, end time.Time) string {
	if end.IsZero() {
		return ""
	}
	return fmt.Sprintf(" Unless %s, this is over by %s.", unless, phrase.Clock(end))
}

// readLruCounts adds row counts to the statuses of the pinned maps that evict rows.
func (g *Reader) readLruCounts(statuses []Map) error {
	lruStats, err := maps.OpenLruStats(g.dir, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lruStats.Close()
	for i := range statuses {
		s := &statuses[i]
		if !maps.PushesOut(s.Name) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(s.Pin, &ebpf.LoadPinOptions{ReadOnly: true})
		if errors.Is(err, fs.ErrNotExist) { // removed just now
			continue
		}
		if err != nil {
			return fmt.Errorf("open map %s: %w", s.Pin, err)
		}
		found, evicted, err := g.lruCounts.of(lruStats, m, s.Name)
		m.Close()
		if err != nil {
			return err
		}
		s.fill(found.LruCounts, evicted)
		if evicted > 0 {
			s.EvictionsEnd = found.evictions.over()
		}
	}
	return nil
}
