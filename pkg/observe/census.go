package observe

import (
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
)

const (
	// censusEvery is how often the rows of a map are counted again, if somebody asks, and censusRest how many times as
	// long as that took it is not done again.
	censusEvery = 10 * time.Second
	censusRest  = 50
	// lately is how far back it is said at least what was pushed out lately.
	lately = time.Minute
)

// census remembers what was counted of the maps that push out what they have no room for. It is what a Gauge has for a
// memory: counting costs a look at every row.
type census struct {
	mu    sync.Mutex
	known map[string]*counted
	now   func() time.Time
}

type counted struct {
	maps.Census
	at   time.Time
	took time.Duration

	marked [2]mark // the older first
}

// mark is how many rows had been pushed out at some moment.
type mark struct {
	at      time.Time
	evicted uint64
}

func newCensus() *census { return &census{known: map[string]*counted{}, now: time.Now} }

// of returns what is known of a map and how many of its rows were pushed out lately, having counted again if it is time
// and rows have come or gone. What was pushed out never becomes less.
func (c *census) of(turnover, m *ebpf.Map, name string) (maps.Census, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := c.now()
	k := c.known[name]
	if k != nil && start.Sub(k.at) < max(censusEvery, censusRest*k.took) {
		return k.Census, k.lately(start), nil
	}
	if k != nil {
		is, err := maps.ReadTurnover(turnover, name)
		if err != nil {
			return maps.Census{}, 0, err
		}
		if is == k.Turnover {
			k.at = start
			return k.Census, k.lately(start), nil
		}
	}
	found, err := maps.TakeCensus(turnover, m, name)
	if err != nil {
		return maps.Census{}, 0, err
	}
	if k == nil {
		first := mark{start, found.Evicted}
		k = &counted{marked: [2]mark{first, first}}
		c.known[name] = k
	}
	found.Evicted = max(found.Evicted, k.Evicted)
	k.Census, k.at, k.took = found, start, c.now().Sub(start)
	return found, k.lately(start), nil
}

// lately returns how many rows were pushed out in the last minute or two.
func (k *counted) lately(now time.Time) uint64 {
	if now.Sub(k.marked[1].at) >= lately {
		k.marked = [2]mark{k.marked[1], {now, k.Evicted}}
	}
	return k.Evicted - k.marked[0].evicted
}

// fill says in the status of a map that pushes out what there is to say of its rows.
func (m *MapStatus) fill(found maps.Census, lately uint64) {
	m.SetEntries(found.Rows)
	m.Evictions, m.EvictedLately = &found.Evicted, lately
}

// SetEntries says how many rows are in use.
func (m *MapStatus) SetEntries(n int) {
	m.Entries = &n
	m.Pressure = float64(n) / float64(max(1, m.Capacity))
}

// crowdedOut is the part of a map's rows that has to be pushed out within a minute or two to be worth a word: what is
// pushed out first are rows that nobody has used for long.
const crowdedOut = 0.01

// judge says what it means for clients that a map pushes out rows, and what to do.
func (m *MapStatus) judge(say func(string, ...any)) {
	if m.EvictedLately == 0 || float64(m.EvictedLately) < crowdedOut*float64(m.Capacity) {
		return
	}
	what, ok := map[string]string{
		"ct_half": "connections from outside may not come about: \"fairlead conntrack list --state new\" shows who begins so many. " +
			"Stop a flood before it reaches this node; if the clients are wanted, raise the option conntrack-max, of which this map is a part, and restart the agent",
		"affinity": "clients of services with session affinity may get another backend: it grows by itself, twofold every 15 seconds, to a 64th of the " +
			"memory; if this goes on, spread the clients over more nodes",
		"frags": "datagrams that come in fragments may be lost: have senders keep to the path's MTU",
	}[m.Name]
	if ok {
		say("Map %s, of %d rows, has pushed out %d in the last minutes: %s.", m.Name, m.Capacity, m.EvictedLately, what)
	}
}

// readCensus says in the statuses what there is to say of the maps that push out, by what is pinned.
func (g *Gauge) readCensus(statuses []MapStatus) error {
	turnover, err := maps.OpenTurnover(g.dir, true)
	if err != nil {
		return err
	}
	defer turnover.Close()
	for i := range statuses {
		s := &statuses[i]
		if !maps.PushesOut(s.Name) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(s.Pin, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return fmt.Errorf("open map %s: %w", s.Pin, err)
		}
		found, lately, err := g.census.of(turnover, m, s.Name)
		m.Close()
		if err != nil {
			return err
		}
		s.fill(found, lately)
	}
	return nil
}
