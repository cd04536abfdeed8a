package reconcile

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// TestDamagedMapsAreMended starts on maps with randomly overwritten rows. The agent must start and
// end with what the objects say.
func TestDamagedMapsAreMended(t *testing.T) {
	for seed := range uint64(100) {
		w := newRandomCluster(seed)
		store := model.NewStore("node0")
		for range 150 {
			w.step(store, true)
		}
		w.relist(store)
		r := start(t, store, NewMemory(small), nil)
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		tables := *r.tables
		tables.Frontends = tables.Frontends.(*faults).Frontends
		for range 1 + w.rand.IntN(8) {
			damage(w.rand, &tables)
		}
		store = model.NewStore("node0")
		r = start(t, store, &tables, nil)
		if err := r.Drain(); err != nil { // before the sources have delivered
			t.Fatalf("seed %d: %v", seed, err)
		}
		w.relist(store)
		if err := r.Drain(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(fresh(t, w), meaning(t, r.tables)); diff != "" {
			t.Fatalf("seed %d: not mended (-fresh +this):\n%s", seed, diff)
		}
	}
}

func damage(random *rand.Rand, t *Tables) {
	service := 1 + random.IntN(len(t.Services)-1)
	switch random.IntN(9) {
	case 0:
		t.Services[service].Words[random.IntN(maps.Scopes)] = random.Uint64()
	case 1:
		t.Services[service].Words[maps.ScopeAll] ^= 1 << random.IntN(64)
	case 2:
		t.Slots[random.IntN(len(t.Slots))] = maps.Slot{Value: random.Uint64()}
	case 3:
		t.Backends[random.IntN(len(t.Backends))] = t.Backends[random.IntN(len(t.Backends))]
	case 4:
		t.Names[service] = t.Names[1+random.IntN(len(t.Names)-1)]
	case 5:
		t.Names[service] = maps.NameText{}
	case 6:
		t.Services[service].Flags, t.Services[service].Algorithm = uint8(random.Uint32()), uint8(random.Uint32())
	case 7:
		t.Backends[random.IntN(len(t.Backends))].Owner = random.Uint32() & 0x3000001f // some service and some scopes
	case 8:
		var keys []maps.SvcKey
		_ = t.Frontends.Each(func(key maps.SvcKey, _ maps.Svc) { keys = append(keys, key) })
		if len(keys) == 0 {
			return
		}
		slices.SortFunc(keys, func(a, b maps.SvcKey) int { return maps.AddrPort(a).Compare(maps.AddrPort(b)) })
		_ = t.Frontends.Update(keys[random.IntN(len(keys))], maps.Svc{Service: random.Uint32N(2 * uint32(len(t.Services))), Kind: 1})
	}
}
