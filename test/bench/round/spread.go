package round

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"

	"fairlead.io/fairlead/test/bench/result"
)

// confidence is the probability that the true median is within the interval of a Spread.
const confidence = 0.95

// Spread describes the distribution of the figures. Without figures, everything is zero. The interval assumes nothing of
// the distribution, as benchstat's does not. With fewer than six figures not even all of them reach the confidence; then
// it is from the least to the largest.
func Spread(figures []float64) result.Spread {
	if len(figures) == 0 {
		return result.Spread{}
	}
	sorted := slices.Sorted(slices.Values(figures))
	least, most := sorted[0], sorted[len(sorted)-1]
	interval := benchmath.AssumeNothing.Summary(benchmath.NewSample(sorted, &benchmath.DefaultThresholds), confidence)
	return result.Spread{
		Rounds: len(sorted),
		Min:    least, Q1: Quantile(sorted, 0.25), Median: Quantile(sorted, 0.5), Q3: Quantile(sorted, 0.75), Max: most,
		Low: max(least, interval.Lo), High: min(most, interval.Hi),
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
