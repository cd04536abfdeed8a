package mapstats

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// pressed is a map of clients with affinity, with a fake clock.
type pressed struct {
	maps      *maps.Maps
	lruCounts *lruCounts
	at        time.Time
	made      uint64
}

func newPressed(t *testing.T) *pressed {
	t.Helper()
	rig.Root(t)
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	p := &pressed{maps: m, lruCounts: newLruCounts(), at: time.Unix(1000, 0)}
	p.lruCounts.now = func() time.Time { return p.at }
	return p
}

// come adds clients, of which the given number are evicted at once.
func (p *pressed) come(t *testing.T, clients, pushed int) {
	t.Helper()
	for n := range clients - pushed {
		key := maps.AffinityKey{Client: bpf.MapsAddr{Word: [4]uint32{uint32(p.made), uint32(n)}}}
		if err := p.maps.Affinity.Put(key, maps.Affinity{}); err != nil {
			t.Fatal(err)
		}
	}
	p.made += uint64(clients)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	counts := make([]maps.LruStats, cpus)
	counts[0].Made = p.made / 2
	counts[cpus-1].Made += p.made - p.made/2
	if err := p.maps.LruStats.Put(uint32(bpf.MapsLruLRU_AFFINITY), counts); err != nil {
		t.Fatal(err)
	}
}

type mapReading struct {
	Rows            int
	Evicted, Lately uint64
}

func (p *pressed) read(t *testing.T) mapReading {
	t.Helper()
	c, lately, err := p.lruCounts.of(p.maps.LruStats, p.maps.Affinity, "affinity")
	if err != nil {
		t.Fatal(err)
	}
	return mapReading{c.Rows, c.Evicted, lately}
}

// Rows are counted at most every ten seconds. Evictions are recent for a minute or two and stay
// counted.
func TestLruCounts(t *testing.T) {
	p := newPressed(t)
	for _, step := range []struct {
		name            string
		after           time.Duration
		clients, pushed int
		want            mapReading
	}{
		{"an agent starts with some", 0, 20, 5, mapReading{15, 5, 0}},
		{"too soon to look again", 9 * time.Second, 10, 2, mapReading{15, 5, 0}},
		{"later", time.Second, 0, 0, mapReading{23, 7, 2}},
		{"nobody came", 20 * time.Second, 0, 0, mapReading{23, 7, 2}},
		{"more within the minute", 20 * time.Second, 5, 5, mapReading{23, 12, 7}},
		{"a minute after the start", 20 * time.Second, 0, 0, mapReading{23, 12, 7}},
		{"another minute", time.Minute, 0, 0, mapReading{23, 12, 0}},
		{"nothing for a minute", time.Minute, 0, 0, mapReading{23, 12, 0}},
		{"a flood", 10 * time.Second, 50, 50, mapReading{23, 62, 50}},
		{"two minutes later, and nobody looked meanwhile", 2 * time.Minute, 0, 0, mapReading{23, 62, 0}},
	} {
		p.at = p.at.Add(step.after)
		if step.clients > 0 {
			p.come(t, step.clients, step.pushed)
		}
		if diff := cmp.Diff(step.want, p.read(t)); diff != "" {
			t.Errorf("%s (-want +have):\n%s", step.name, diff)
		}
	}
}

// The number of evictions never decreases, even if a lruCounts lags behind an earlier one.
func TestEvictionsNeverBecomeLess(t *testing.T) {
	p := newPressed(t)
	p.come(t, 10, 10)
	p.read(t)
	for n := range uint32(5) { // not counted as made
		if err := p.maps.Affinity.Put(maps.AffinityKey{Service: n}, maps.Affinity{}); err != nil {
			t.Fatal(err)
		}
	}
	p.at = p.at.Add(time.Minute)
	p.come(t, 1, 1)
	if have := p.read(t); have.Evicted != 10 {
		t.Errorf("got %+v after 10 rows were evicted", have)
	}
}
