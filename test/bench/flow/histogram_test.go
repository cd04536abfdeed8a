package flow

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Every time is in the right bucket, and there are no gaps between buckets.
func TestBuckets(t *testing.T) {
	end := uint64(0)
	for i := range buckets {
		from, width := boundsOf(i)
		if from != end {
			t.Fatalf("bucket %d begins at %d, the one before ends at %d", i, from, end)
		}
		if float64(width) > max(1, float64(from)/512) {
			t.Fatalf("bucket %d from %d is %d wide", i, from, width)
		}
		if bucketOf(from) != i || bucketOf(from+width-1) != i {
			t.Fatalf("bucket %d: its bounds fall into buckets %d and %d", i, bucketOf(from), bucketOf(from+width-1))
		}
		end = from + width
	}
	if bucketOf(math.MaxUint64) != buckets-1 {
		t.Error("the longest time has no bucket")
	}
}

func TestQuantiles(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, scale := range []float64{100, 10_000, 1e7} {
		var parts [2]histogram
		var values []float64
		for i := range 20_000 {
			ns := math.Floor(random.ExpFloat64() * scale)
			values = append(values, ns)
			parts[i%2].add(time.Duration(ns))
		}
		slices.Sort(values)
		parts[0].merge(&parts[1])
		parts[0].merge(&histogram{})
		for _, q := range []float64{0.001, 0.5, 0.9, 0.99, 0.999, 1} {
			want := values[int(math.Ceil(q*20_000))-1]
			if have := parts[0].quantile(q); math.Abs(have-want) > max(1, want*0.004) {
				t.Errorf("scale %v: quantile %v is %v, want %v", scale, q, have, want)
			}
		}
		times := parts[0].times(2)
		if times.Min != values[0]/2 || times.Max != values[len(values)-1]/2 || math.Abs(times.Mean*2-scale)/scale > 0.05 {
			t.Errorf("scale %v: %+v", scale, times)
		}
	}
	if have := (&histogram{}).times(1); have != (Times{}) {
		t.Errorf("of an empty histogram: %+v", have)
	}
}

func TestHistogramDoesNotAllocate(t *testing.T) {
	h := &histogram{}
	if n := testing.AllocsPerRun(1000, func() { h.add(12345) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
