package round

import (
	"math"
	"slices"

	"fairlead.io/fairlead/test/bench/result"
)

// confidence is the probability that the true median is within the interval of a Spread.
const confidence = 0.95

// Spread describes the distribution of the figures. Without figures, everything is zero.
func Spread(figures []float64) result.Spread {
	if len(figures) == 0 {
		return result.Spread{}
	}
	sorted := slices.Sorted(slices.Values(figures))
	below := outside(len(sorted))
	return result.Spread{
		Rounds: len(sorted),
		Min:    sorted[0], Q1: Quantile(sorted, 0.25), Median: Quantile(sorted, 0.5), Q3: Quantile(sorted, 0.75), Max: sorted[len(sorted)-1],
		Low: sorted[below], High: sorted[len(sorted)-1-below],
	}
}

// Quantile returns the value that the given fraction, between 0 and 1, of sorted figures is below.
// It interpolates between figures.
func Quantile(sorted []float64, part float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := part * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// outside returns how many of n sorted figures can be dropped at either end with the true median
// still between the rest at the wanted confidence. Each figure is below the median with a
// probability of one half, whatever the distribution, so the number of those below is binomial.
// With fewer than six figures, not even all of them reach that confidence.
func outside(n int) int {
	logChoose := func(k int) float64 {
		a, _ := math.Lgamma(float64(n + 1))
		b, _ := math.Lgamma(float64(k + 1))
		c, _ := math.Lgamma(float64(n - k + 1))
		return a - b - c
	}
	var tail float64
	for k := range n / 2 {
		if tail += math.Exp(logChoose(k) - float64(n)*math.Ln2); tail > (1-confidence)/2 {
			return max(0, k-1)
		}
	}
	return 0
}
