package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
)

const (
	// lruCountsEvery is the shortest time between two counts of a map's rows. If a count takes long,
	// the pause is at least lruCountsRest times as long.
	lruCountsEvery = 10 * time.Second
	lruCountsRest  = 50
)

// lruCounts caches the row counts of the maps that evict rows, for a Gauge: counting has to visit
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

// fill adds the row counts to the status of a map that evicts rows.
func (m *MapStatus) fill(found maps.LruCounts, lately uint64) {
	m.SetEntries(found.Rows)
	m.Evictions, m.EvictedLately = &found.Evicted, lately
}

// SetEntries sets the number of rows in use.
func (m *MapStatus) SetEntries(n int) {
	m.Entries = &n
	m.Pressure = float64(n) / float64(max(1, m.Capacity))
}

// nearlyFull is the fill level from which a status reports that a map is nearly full.
const nearlyFull = 0.9

// crowdedOut is the fraction of a map's rows that must be evicted within a minute or two to be
// worth reporting: the first rows to go are those that nobody has used for long.
const crowdedOut = 0.01

// findings says what it means for clients that a map evicts rows, and what to do.
func (m *MapStatus) findings(say func(string, ...any)) {
	if m.EvictedLately == 0 || float64(m.EvictedLately) < crowdedOut*float64(m.Capacity) {
		return
	}
	what, ok := map[string]string{
		"ct_pending": "connections from outside may not come about: \"fairlead conntrack list --state new\" shows who begins so many. " +
			"Stop a flood before it reaches this node; if the clients are wanted, raise the option conntrack-max, of which this map is a part, and restart the agent",
		"affinity": "clients of services with session affinity may get another backend: it grows by itself, twofold every 15 seconds, to a 64th of the " +
			"memory; if this goes on, spread the clients over more nodes",
		"frags": "datagrams that come in fragments may be lost: have senders keep to the path's MTU",
	}[m.Name]
	if ok {
		say("Map %s, of %d rows, has pushed out %d in the last minutes: %s.%s", m.Name, m.Capacity, m.EvictedLately, what,
			overBy("it pushes out more", m.EvictionsEnd))
	}
}

// overBy returns the sentence that says when a trouble of the last minutes is over.
func overBy(unless string, end time.Time) string {
	if end.IsZero() {
		return ""
	}
	return fmt.Sprintf(" Unless %s, this is over by %s.", unless, clock(end))
}

// readLruCounts adds row counts to the statuses of the pinned maps that evict rows.
func (g *Gauge) readLruCounts(statuses []MapStatus) error {
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
