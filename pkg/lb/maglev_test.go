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

	"pgregory.net/rapid"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func maglevBackendOf(addr string, port uint16) bpf.MapsBackend {
	return maps.BackendOf(netip.MustParseAddr(addr), port, model.TCP)
}

// maglevPods returns backends of weight 1 at addresses as pods have them: neighbours in a few nodes' ranges, each once.
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

// maglevOf returns the table of that size, whatever size the number of backends asks for.
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

// TestMaglevDisruption takes one of N backends out, for every N to 1,000, and counts the slots that change hands. Those
// of the backend itself have to; putting it back moves the same slots the other way.
func TestMaglevDisruption(t *testing.T) {
	const bound = 1.5
	random := rand.New(rand.NewPCG(1, 2))
	var ratios []string
	worst, worstN := 0.0, 0
	for n := 2; n <= 1000; n++ {
		// The middle of the range where a size is used, and its ends, at every N; elsewhere a sample.
		if testing.Short() && n%50 != 0 {
			continue
		}
		size := maglevSize(n)
		backends := maglevPods(random, n)
		with := maglevOf(size, backends)
		gone := random.IntN(n)
		without := maglevOf(size, slices.Delete(slices.Clone(backends), gone, gone+1))
		own, moved := 0, 0
		for slot, position := range with {
			left := without[slot]
			if int(left) >= gone {
				left++
			}
			if left != position {
				moved++
			}
			if int(position) == gone {
				own++
			}
		}
		ratio := float64(moved) / float64(own)
		if ratio > worst {
			worst, worstN = ratio, n
		}
		if ratio > bound {
			t.Errorf("%d backends, %d slots: taking one out moved %d slots, it had %d", n, size, moved, own)
		}
		if n == 3 || n == 10 || n == 40 || n == 163 || n == 164 || n%250 == 0 {
			ratios = append(ratios, fmt.Sprintf("%d: %.2f", n, ratio))
		}
	}
	t.Logf("slots moved / slots that had to move: %v; the worst %.2f, at %d backends", ratios, worst, worstN)
}

func BenchmarkMaglev(b *testing.B) {
	for _, n := range []int{3, 10, 100, 163, 1000} {
		backends := maglevPods(rand.New(rand.NewPCG(1, uint64(n))), n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			var table []uint32
			for b.Loop() {
				table = Table(table[:0], Maglev, true, backends)
			}
		})
	}
}

var _ = sha256.New
var _ = binary.BigEndian
var _ = hex.EncodeToString
var _ = rapid.Check
