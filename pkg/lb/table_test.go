package lb

import (
	"encoding/binary"
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

// tableBackends returns one backend for each weight, at ascending addresses.
func tableBackends(weights ...uint16) []Weighted {
	list := make([]Weighted, len(weights))
	for i, weight := range weights {
		var addr [4]byte
		binary.BigEndian.PutUint32(addr[:], 10<<24+uint32(i)+1)
		list[i] = Weighted{maps.BackendOf(netip.AddrFrom4(addr), 80, model.TCP), weight}
	}
	return list
}

func TestTable(t *testing.T) {
	tests := []struct {
		name      string
		algorithm Algorithm
		external  bool
		weights   []uint16
		want      []uint32
	}{
		{"none", Random, true, nil, nil},
		{"one", RoundRobin, false, []uint16{1}, []uint32{0}},
		{"equal", RoundRobin, false, []uint16{1, 1, 1}, []uint32{0, 1, 2}},
		{"equal but not 1", SourceHash, false, []uint16{500, 500}, []uint32{0, 1}},
		{"one of 0", Random, false, []uint16{1, 0, 1}, []uint32{0, 2}},
		{"all of 0", Random, false, []uint16{0, 0, 0}, []uint32{0, 1, 2}},
		{"reduced", RoundRobin, false, []uint16{200, 100}, []uint32{0, 1, 0}},
		{"reduced, with one of 0", RoundRobin, false, []uint16{0, 300, 100}, []uint32{1, 1, 2, 1}},
		{"one heavy among light ones", RoundRobin, false, []uint16{4, 1, 1, 1, 1}, []uint32{0, 1, 0, 2, 0, 3, 0, 4}},
		{"the heavy one last", RoundRobin, false, []uint16{1, 1, 2}, []uint32{2, 0, 2, 1}},
		{"maglev, not external", Maglev, false, []uint16{1, 1, 1}, []uint32{0, 1, 2}},
		{"maglev, not external, weighted", Maglev, false, []uint16{2, 1}, []uint32{0, 1, 0}},
		{"maglev, one backend", Maglev, true, []uint16{1}, []uint32{0}},
		{"maglev, one backend that counts", Maglev, true, []uint16{0, 7, 0}, []uint32{1}},
		{"external, not maglev", Random, true, []uint16{1, 1}, []uint32{0, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			backends := tableBackends(tt.weights...)
			if diff := cmp.Diff(tt.want, Table(nil, tt.algorithm, tt.external, backends)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			after := Table([]uint32{7, 8}, tt.algorithm, tt.external, backends)
			if diff := cmp.Diff(append([]uint32{7, 8}, tt.want...), after); diff != "" {
				t.Errorf("appended: -want +got\n%s", diff)
			}
		})
	}
	if got := len(Table(nil, Maglev, true, tableBackends(1, 1))); got != 1021 {
		t.Errorf("an external Maglev table has %d slots", got)
	}
}

func TestTableAllocatesNothing(t *testing.T) {
	for _, weights := range [][]uint16{{1}, {1, 1, 1}, {0, 0}, {3, 0, 3}} {
		backends, dst := tableBackends(weights...), make([]uint32, 0, 8)
		if n := testing.AllocsPerRun(100, func() { dst = Table(dst[:0], RoundRobin, true, backends) }); n != 0 {
			t.Errorf("weights %v: %v allocations", weights, n)
		}
	}
}

// tableGenWeights draws weights as users set them: a few different values, some of them zero, or
// arbitrary ones.
func tableGenWeights(t *rapid.T, most int) []uint16 {
	some := rapid.SliceOfN(rapid.Uint16Range(0, 1000), 1, 4).Draw(t, "some")
	weight := rapid.OneOf(rapid.SampledFrom(some), rapid.Uint16Range(0, 1000), rapid.Uint16Range(0, 5))
	if rapid.Bool().Draw(t, "few") {
		weight = rapid.SampledFrom(some)
	}
	n := rapid.IntRange(1, most).Draw(t, "n")
	return rapid.SliceOfN(weight, n, n).Draw(t, "weights")
}

// tableEffective returns the weights that count, with their sum and greatest common divisor.
func tableEffective(weights []uint16) (effective []int, total, divisor int) {
	effective = make([]int, len(weights))
	highest := slices.Max(weights)
	for i, weight := range weights {
		effective[i] = int(weight)
		if highest == 0 {
			effective[i] = 1
		}
		total += effective[i]
		divisor = int(tableGCD(uint32(effective[i]), uint32(divisor)))
	}
	return effective, total, divisor
}

func TestTableWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := tableGenWeights(t, 60)
		table := Table(nil, RoundRobin, true, tableBackends(weights...))
		effective, total, divisor := tableEffective(weights)
		if want := total / divisor; len(table) != want && want <= MaxSlots {
			t.Fatalf("%d slots, want %d", len(table), want)
		}
		for i, count := range maglevCounts(table, len(weights)) {
			if want := effective[i] / divisor; count != want && total/divisor <= MaxSlots {
				t.Errorf("backend %d has %d slots, want %d", i, count, want)
			}
			if (count == 0) != (effective[i] == 0) {
				t.Errorf("backend %d of weight %d has %d slots", i, weights[i], count)
			}
		}
		tableCheckSmooth(t, table, len(weights))
	})
}

// tableCheckSmooth checks that after any prefix of the table every backend has had the turns due to
// it, to within one turn plus its share of half the number of different weights.
func tableCheckSmooth(t *rapid.T, table []uint32, backends int) {
	counts := maglevCounts(table, backends)
	different := map[int]bool{}
	for _, count := range counts {
		different[count] = true
	}
	had := make([]int, backends)
	for i, position := range table {
		had[position]++
		for b, count := range counts {
			share := float64(count) / float64(len(table))
			bound := 1 + share*(1+float64(len(different))/2)
			if ahead := float64(had[b]) - float64(i+1)*share; ahead > bound || -ahead > bound {
				t.Fatalf("after %d of %d slots, backend %d had %d of its %d slots", i+1, len(table), b, had[b], count)
			}
		}
		if i > 3000 {
			return // the rest of a long table is more of the same, and this is quadratic
		}
	}
}

func TestTableScaled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint16Range(1, 1000), 300, 2000).Draw(t, "weights")
		weights = append(weights, 1, 1, 997, 991, 1000, 1000)
		_, total, divisor := tableEffective(weights)
		if total/divisor <= MaxSlots {
			t.Skip("fits as it is")
		}
		table := Table(nil, Random, false, tableBackends(weights...))
		if len(table) > MaxSlots || len(table) < MaxSlots-len(weights) {
			t.Fatalf("%d slots for %d backends", len(table), len(weights))
		}
		byWeight := map[uint16]int{}
		for i, count := range maglevCounts(table, len(weights)) {
			if known, ok := byWeight[weights[i]]; ok && known != count {
				t.Fatalf("backends of weight %d have %d and %d slots", weights[i], known, count)
			}
			byWeight[weights[i]] = count
			// Rounded down from at most the exact share, unless that would be none.
			exact := float64(weights[i]) * MaxSlots / float64(total)
			if count < 1 || count > 1 && float64(count) > exact || float64(count) < 0.9*exact-1 {
				t.Errorf("weight %d has %d slots, its share is %.1f", weights[i], count, exact)
			}
		}
	})
}

func TestTableOfTooMany(t *testing.T) {
	const extra = 3000
	weights := make([]uint16, MaxSlots+extra)
	for i := range weights {
		weights[i] = 1
	}
	backends := tableBackends(weights...)
	chosen := func(backends []Weighted, algorithm Algorithm) map[maps.Backend]bool {
		set := map[maps.Backend]bool{}
		for _, position := range Table(nil, algorithm, true, backends) {
			set[backends[position].Backend] = true
		}
		return set
	}
	all := chosen(backends, Random)
	if len(all) != MaxSlots {
		t.Fatalf("%d backends have slots, want %d", len(all), MaxSlots)
	}
	if table := Table(nil, Random, false, backends); len(table) != MaxSlots || !slices.IsSorted(table) {
		t.Errorf("%d slots, sorted: %v", len(table), slices.IsSorted(table))
	}
	head := 0
	for _, b := range backends[:MaxSlots] {
		if all[b.Backend] {
			head++
		}
	}
	if want := int(uint64(MaxSlots) * MaxSlots / uint64(len(backends))); head < want-300 || head > want+300 {
		t.Errorf("%d of the first %d were chosen, want about %d: not a random choice", head, MaxSlots, want)
	}
	for _, gone := range []int{0, 1000, len(backends) - 1} {
		changed := 0
		left := chosen(slices.Delete(slices.Clone(backends), gone, gone+1), Random)
		for backend := range left {
			if !all[backend] {
				changed++
			}
		}
		want := 0
		if all[backends[gone].Backend] {
			want = 1
		}
		if changed != want || len(left) != MaxSlots {
			t.Errorf("without backend %d, %d others were chosen, want %d", gone, changed, want)
		}
	}
	if got := len(chosen(backends, Maglev)); got != 65521 {
		t.Errorf("a Maglev table holds %d backends, want one for each slot", got)
	}
	backends[5].Weight = 0
	if chosen(backends, Random)[backends[5].Backend] {
		t.Error("a backend of weight 0 was chosen")
	}
	if got := len(chosen(backends[:MaxSlots+1], Random)); got != MaxSlots {
		t.Errorf("%d of %d backends that count were chosen", got, MaxSlots)
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		equal := make([]uint16, n)
		mixed := make([]uint16, n)
		for i := range equal {
			equal[i], mixed[i] = 1, uint16(1+i%2)
		}
		for name, weights := range map[string][]uint16{"equal": equal, "weighted": mixed} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				backends := tableBackends(weights...)
				b.ReportAllocs()
				var table []uint32
				for b.Loop() {
					table = Table(table[:0], Random, false, backends)
				}
			})
		}
	}
	b.Run("1000/every weight", func(b *testing.B) {
		weights := make([]uint16, 1000)
		for i := range weights {
			weights[i] = uint16(i + 1)
		}
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(weights), func(i, j int) { weights[i], weights[j] = weights[j], weights[i] })
		backends := tableBackends(weights...)
		b.ReportAllocs()
		var table []uint32
		for b.Loop() {
			table = Table(table[:0], Random, false, backends)
		}
	})
}
