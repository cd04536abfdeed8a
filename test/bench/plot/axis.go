package plot

import (
	"math"
	"strconv"

	"fairlead.io/fairlead/test/bench/result"
)

// ticks returns round figures from zero to one that is at least top, about as many as wanted.
func ticks(top float64, wanted int) []float64 {
	if top <= 0 {
		return []float64{0, 1}
	}
	raw := top / float64(wanted)
	magnitude := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * magnitude
	for _, round := range []float64{1, 2, 2.5, 5} {
		if round*magnitude >= raw*(1-1e-9) {
			step = round * magnitude
			break
		}
	}
	list := []float64{0}
	for i := 1; list[len(list)-1] < top*(1-1e-9); i++ {
		list = append(list, float64(i)*step)
	}
	return list
}

// short formats a round figure in few characters: 20k instead of 20000.
func short(v float64) string {
	for _, s := range []struct {
		by     float64
		suffix string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= s.by {
			return strconv.FormatFloat(v/s.by, 'g', 4, 64) + s.suffix
		}
	}
	return result.Figure(v)
}
