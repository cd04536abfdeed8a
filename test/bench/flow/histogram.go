package flow

import (
	"math"
	"math/bits"
	"time"
)

const (
	// fineness is the binary logarithm of the number of buckets per power of two: each bucket is
	// 0.2 % wide.
	fineness = 9
	coarsest = 40 // bits of the longest time, 2^40 ns or a quarter of an hour
	buckets  = (coarsest - fineness + 1) << fineness
)

// histogram counts times without allocating memory.
type histogram struct {
	counts   [buckets]uint64
	total    uint64
	sum      uint64
	min, max uint64
}

func bucketOf(ns uint64) int {
	if ns < 1<<fineness {
		return int(ns)
	}
	shift := bits.Len64(ns) - fineness - 1
	return min(shift<<fineness+int(ns>>shift), buckets-1)
}

// boundsOf returns the lowest time of a bucket, and its width.
func boundsOf(bucket int) (from, width uint64) {
	if bucket < 1<<fineness {
		return uint64(bucket), 1
	}
	shift := bucket>>fineness - 1
	return uint64(bucket-shift<<fineness) << shift, 1 << shift
}

func (h *histogram) add(d time.Duration) {
	ns := uint64(max(d, 0))
	h.counts[bucketOf(ns)]++
	if h.total == 0 || ns < h.min {
		h.min = ns
	}
	h.max = max(h.max, ns)
	h.sum += ns
	h.total++
}

func (h *histogram) merge(other *histogram) {
	if other.total == 0 {
		return
	}
	for i, n := range other.counts {
		h.counts[i] += n
	}
	if h.total == 0 || other.min < h.min {
		h.min = other.min
	}
	h.max = max(h.max, other.max)
	h.sum += other.sum
	h.total += other.total
}

// quantile returns the time that the fraction q of all times does not exceed. Times within a bucket
// count as evenly spread.
func (h *histogram) quantile(q float64) float64 {
	if h.total == 0 {
		return 0
	}
	rank := max(math.Ceil(q*float64(h.total)), 1)
	before := 0.0
	for i, n := range h.counts {
		if before+float64(n) >= rank {
			from, width := boundsOf(i)
			value := float64(from) + float64(width)*(rank-before-0.5)/float64(n)
			if width == 1 {
				value = float64(from)
			}
			return min(max(value, float64(h.min)), float64(h.max))
		}
		before += float64(n)
	}
	return float64(h.max)
}

// Times holds quantiles of the time of one operation, in nanoseconds.
type Times struct {
	Min, Mean, P50, P90, P99, P999, Max float64
}

// times returns the quantiles, each divided by the number of operations that a recorded time
// covers.
func (h *histogram) times(operations int) Times {
	if h.total == 0 {
		return Times{}
	}
	per := float64(operations)
	return Times{
		Min: float64(h.min) / per, Mean: float64(h.sum) / float64(h.total) / per,
		P50: h.quantile(0.5) / per, P90: h.quantile(0.9) / per, P99: h.quantile(0.99) / per, P999: h.quantile(0.999) / per,
		Max: float64(h.max) / per,
	}
}
