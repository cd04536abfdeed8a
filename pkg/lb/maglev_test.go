package lb

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// maglevPods returns backends of weight 1 at distinct addresses typical of pods: neighbors in the
// ranges of a few nodes.
func maglevPods(random *rand.Rand, n int) []Weighted {
	pods := make([]Weighted, 0, n)
	for seen := map[netip.Addr]bool{}; len(pods) < n; {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(random.IntN(64)), byte(random.IntN(256))})
		if !seen[addr] {
			seen[addr] = true
			pods = append(pods, Weighted{maps.BackendOf(addr, 8080, model.TCP), 1})
		}
	}
	return pods
}

// maglevOf returns the table of the given size, whatever maglevSize says for that number of
// backends.
func maglevOf(size uint32, backends []Weighted) []uint32 {
	slots := make([]uint32, size)
	maglevFill(slots, tableShares(backends, tableWeigh(backends)), backends)
	return slots
}

func maglevCounts(table []uint32, backends int) []int {
	counts := make([]int, backends)
	for _, position := range table {
		counts[position]++
	}
	return counts
}

func TestMaglevSizes(t *testing.T) {
	for backends, want := range map[int]uint32{
		2: 1021, 10: 1021, 11: 4093, 40: 4093, 41: 16381, 163: 16381, 164: 65521, 655: 65521, 1000: 65521, MaxSlots: 65521,
	} {
		if got := maglevSize(backends); got != want {
			t.Errorf("%d backends: %d slots, want %d", backends, got, want)
		}
	}
	for _, size := range maglevSizes() {
		for d := uint32(2); d*d <= size; d++ {
			if size%d == 0 {
				t.Errorf("%d is a multiple of %d", size, d)
			}
		}
		if size > MaxSlots {
			t.Errorf("%d slots exceed MaxSlots", size)
		}
	}
}

func TestMaglevShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := tableGenWeights(t, 200)
		maglevCheckShares(t, weights)
	})
	random := rand.New(rand.NewPCG(5, 1))
	for _, n := range []int{2, 10, 11, 40, 41, 163, 164, 655, 1000, 5000, 30000, 65521, MaxSlots} {
		for _, most := range []int{1, 2, 10, 1000} {
			weights := make([]uint16, n)
			for i := range weights {
				weights[i] = uint16(1 + random.IntN(most))
			}
			maglevCheckShares(t, weights)
		}
		heavy := slices.Repeat([]uint16{1}, n)
		heavy[n/2] = 1000
		maglevCheckShares(t, heavy)
	}
}

// maglevCheckShares checks the bounds that the construction promises. A backend has no more slots
// over its fair share than the upper bound, and no more under it than the lower bound plus the
// 1/256 that finish assigns, each to within two slots for rounding. Every backend has at least one
// slot.
func maglevCheckShares(t rapid.TB, weights []uint16) {
	effective, total, _ := tableEffective(weights)
	n := 0
	for _, weight := range effective {
		n += min(weight, 1)
	}
	if n < 2 {
		return // too few for a Maglev table
	}
	table := Table(nil, Maglev, true, tableBackends(weights...))
	if len(table) != int(maglevSize(n)) {
		t.Fatalf("%d slots for %d backends", len(table), n)
	}
	without := 0
	for i, slots := range maglevCounts(table, len(weights)) {
		if slots == 0 {
			without++
		}
		if effective[i] == 0 {
			if slots > 0 {
				t.Errorf("backend %d of weight 0 has %d slots", i, slots)
			}
			without--
			continue
		}
		fair := float64(len(table)) * float64(effective[i]) / float64(total)
		heavier := max(1, fair/(float64(len(table))/float64(n)))
		above := 1 + min(fair/4, heavier*min(9, float64(n)/16))
		below := 1 + min(fair/2, heavier*(3+min(20, float64(n)/3)))
		least := fair*255/256 - below - 2
		if 2*n > len(table) {
			least = 0 // once every backend has a slot, few are left to distribute by weight
		}
		if float64(slots) > fair+above+1 || float64(slots) < least {
			t.Errorf("%d backends: one of weight %d has %d slots, its fair share is %.1f (+%.1f -%.1f)",
				n, weights[i], slots, fair, above, below)
		}
	}
	if want := max(0, n-len(table)); without != want {
		t.Errorf("%d of %d backends have no slot, want %d", without, n, want)
	}
}

// TestMaglevOrder checks that neither the order of the backends nor the previous content of the
// memory matters.
func TestMaglevOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backends := tableBackends(tableGenWeights(t, 60)...)
		table := Table(nil, Maglev, true, backends)
		dirty := make([]uint32, 0, 1<<16)
		for i := range dirty[:cap(dirty)] {
			dirty[:cap(dirty)][i] = 0xffffffff
		}
		if again := Table(dirty, Maglev, true, backends); !slices.Equal(again, table) {
			t.Fatal("two builds of the same table differ")
		}
		if len(table) < 1021 {
			t.Skip("too few backends for a Maglev table")
		}
		shuffled := rapid.Permutation(backends).Draw(t, "shuffled")
		for slot, position := range Table(nil, Maglev, true, shuffled) {
			if got, want := shuffled[position].Backend, backends[table[slot]].Backend; got != want {
				t.Fatalf("slot %d leads to %v, and to %v with the backends in another order", slot, got, want)
			}
		}
	})
}

// TestMaglevNeverChanges compares with tables of earlier versions. During an upgrade, nodes of a
// cluster run different versions; if their tables differed, flows that change nodes would break.
func TestMaglevNeverChanges(t *testing.T) {
	four := maps.BackendOf(netip.MustParseAddr("10.0.0.1"), 80, model.TCP)
	six := maps.BackendOf(netip.MustParseAddr("fd00::1"), 443, model.UDP)
	hashes := []string{fmt.Sprintf("%016x", maglevHash(&four)), fmt.Sprintf("%016x", maglevHash(&six))}
	if diff := cmp.Diff([]string{"46c67bdda644c8b5", "51ccefcab8be0c66"}, hashes); diff != "" {
		t.Errorf("hashes of %v and %v: -want +got\n%s", maps.BackendAddrPort(four), maps.BackendAddrPort(six), diff)
	}
	equal := make([]uint16, 150)
	mixed := make([]uint16, 30)
	for i := range equal {
		equal[i] = 1
	}
	for i := range mixed {
		mixed[i] = uint16(i % 7 * 40)
	}
	for _, tt := range []struct {
		name     string
		backends []Weighted
		want     string
	}{
		{"two", tableBackends(1, 1), "8d09fc879fbd125e"},
		{"equal weights", tableBackends(equal...), "d04ca2ea580f92b7"},
		{"mixed weights", tableBackends(mixed...), "7285c8513bea976c"},
		{"two families", []Weighted{{four, 1}, {six, 2}}, "759ef8545f24f635"},
	} {
		hash := sha256.New()
		for _, position := range Table(nil, Maglev, true, tt.backends) {
			hash.Write(binary.BigEndian.AppendUint32(nil, position))
		}
		if got := hex.EncodeToString(hash.Sum(nil)[:8]); got != tt.want {
			t.Errorf("%s: the hash of the table is %s, want %s as in earlier versions", tt.name, got, tt.want)
		}
	}
}

// maglevMoved compares the tables with and without the last backend. It returns how many slots that
// backend had, which have to move, and how many moved.
func maglevMoved(with, without []uint32, last int) (own, moved int) {
	for slot, position := range with {
		if position != without[slot] {
			moved++
		}
		if int(position) == last {
			own++
		}
	}
	return own, moved
}

// TestMaglevDisruption removes one backend out of n and adds it back, for every n up to 1,000. In
// both directions only the slots that the backend owns when it is there have to move.
func TestMaglevDisruption(t *testing.T) {
	const bound = 1.5
	backends := maglevPods(rand.New(rand.NewPCG(0, 1)), 1000)
	worst, worstAt, sum := 0.0, 0, 0.0
	var without []uint32
	for n := 2; n <= len(backends); n++ {
		size := maglevSize(n)
		if len(without) != int(size) {
			without = maglevOf(size, backends[:n-1]) // the first one of this size
		}
		with := maglevOf(size, backends[:n])
		own, moved := maglevMoved(with, without, n-1)
		ratio := float64(moved) / float64(own)
		if ratio > bound {
			t.Errorf("%d backends, %d slots: removing one with %d slots moved %d", n, size, own, moved)
		}
		sum += ratio
		if ratio > worst {
			worst, worstAt = ratio, n
		}
		without = with
	}
	t.Logf("ratio of slots moved to slots that have to move: %.2f on average, at worst %.2f (with %d backends)",
		sum/float64(len(backends)-1), worst, worstAt)
}

// TestMaglevWeightedDisruption does the same with weights. The number of extra slots that move does
// not shrink with the weight of the backend that leaves: it is up to half of that backend's slots
// or of the average, whichever is more.
func TestMaglevWeightedDisruption(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	worst := 0.0
	for range 200 {
		n := 2 + random.IntN(500)
		backends := maglevPods(random, n)
		weights := []uint16{1, 1 + uint16(random.IntN(10)), 1 + uint16(random.IntN(100))}
		for i := range backends {
			backends[i].Weight = weights[random.IntN(len(weights))]
		}
		size := maglevSize(n)
		own, moved := maglevMoved(maglevOf(size, backends), maglevOf(size, backends[:n-1]), n-1)
		besides := float64(moved-own) / max(float64(own), float64(size)/float64(n))
		worst = max(worst, besides)
		if besides > 0.5 {
			t.Errorf("%d backends of weights %v, %d slots: removing one of weight %d with %d slots moved %d",
				n, weights, size, backends[n-1].Weight, own, moved)
		}
	}
	t.Logf("ratio of extra slots moved to the slots of the leaving or an average backend: at worst %.2f", worst)
}

func BenchmarkMaglev(b *testing.B) {
	for _, n := range []int{3, 10, 100, 1000, 10000} {
		random := rand.New(rand.NewPCG(1, uint64(n)))
		backends := maglevPods(random, n)
		run := func(b *testing.B) {
			b.ReportAllocs()
			var table []uint32
			for b.Loop() {
				table = Table(table[:0], Maglev, true, backends)
			}
		}
		b.Run(fmt.Sprintf("%d/equal", n), run)
		for i := range backends {
			backends[i].Weight = uint16(1 + random.IntN(1000))
		}
		b.Run(fmt.Sprintf("%d/weighted", n), run)
	}
}
