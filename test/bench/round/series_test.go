package round

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/bench/result"
)

func seriesOf(metric string, ours, yardstick []float64) *Series {
	return &Series{Seed: 3, Rounds: len(ours), values: map[string]map[string][]float64{
		"ours": {metric: ours}, "direct": {metric: yardstick},
	}}
}

// times returns n figures, the i-th of which is f(i).
func times(n int, f func(i int) float64) []float64 {
	list := make([]float64, n)
	for i := range list {
		list[i] = f(i)
	}
	return list
}

func TestDrift(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   float64
	}{
		{"steady", []float64{100, 100, 100, 100, 100, 100, 100, 100, 100}, 0},
		{"one slow round", []float64{100, 100, 100, 100, 900, 100, 100, 100, 100}, 0},
		{"slower by a step", []float64{100, 100, 100, 100, 100, 100, 120, 120, 120}, 0.2},
		{"faster by a step", []float64{120, 120, 120, 100, 100, 100, 100, 100, 100}, 0.2},
		{"slow in the middle", []float64{100, 100, 100, 150, 150, 150, 100, 100, 100}, 0.5},
		{"a slope", []float64{100, 110, 120, 130, 140, 150, 160, 170, 180}, 170.0/110 - 1},
		{"noisy on the spot", []float64{100, 140, 120, 120, 100, 140, 140, 120, 100}, 0},
		{"nothing", []float64{0, 0, 0, 0, 0, 0}, 0},
		{"out of nothing", []float64{0, 0, 0, 0, 1, 1}, math.MaxFloat64},
		{"thirds that are not even", []float64{100, 100, 100, 100, 100, 110, 110, 110}, 0.1},
	}
	for _, tt := range tests {
		got := seriesOf(Wall, nil, tt.values).Drift("direct", Wall)
		if math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s: have %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	steady := times(12, func(int) float64 { return 100 })
	noisy := times(12, func(i int) float64 { return []float64{70, 90, 110, 150}[i%4] })
	drifting := times(12, func(i int) float64 { return 100 + 2*float64(i) })
	tests := []struct {
		name      string
		metric    string
		ours      []float64
		yardstick []float64
		goal      float64
		onValue   bool
		want      result.Verdict
		why       string
	}{
		{"within", Wall, steady, steady, 1, false, result.Pass, ""},
		{"beyond", Wall, steady, steady, 0.99, false, result.Miss, ""},
		{"more is better, enough", "req/s", steady, steady, 1, false, result.Pass, ""},
		{"more is better, too little", "req/s", steady, steady, 1.01, false, result.Miss, ""},
		{"on the value", Wall, steady, steady, 100, true, result.Pass, ""},
		{"on the value, beyond", Wall, steady, steady, 99, true, result.Miss, ""},
		{"no goal", Wall, steady, steady, 0, false, result.Pass, ""},
		{"the yardstick drifts", Wall, steady, drifting, 5, false, result.Inconclusive, "direct, drifted by 16 % over the run"},
		{"the yardstick drifts, on the value", Wall, steady, drifting, 500, true, result.Inconclusive, "drifted"},
		{"the yardstick drifts, no goal", Wall, steady, drifting, 0, false, result.Inconclusive, "drifted"},
		{"ours drifts alone", Wall, drifting, steady, 2, false, result.Pass, ""},
		{"noisy on both sides", Wall, noisy, steady, 1, false, result.Inconclusive, "between 0.7 and 1.5, on both sides"},
		{"noisy and well within", Wall, noisy, steady, 2, false, result.Pass, ""},
		{"noisy and well beyond", Wall, noisy, steady, 0.5, false, result.Miss, ""},
	}
	for _, tt := range tests {
		row, detail, err := seriesOf(tt.metric, tt.ours, tt.yardstick).Evaluate(Question{
			Row: "r", Case: "c", Metric: tt.metric, Variant: "ours", Yardstick: "direct", Goal: tt.goal, OnValue: tt.onValue,
		})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if _, ratio := row.GoalFigure(); ratio == tt.onValue {
			t.Errorf("%s: the row %+v says that the goal applies to the other figure", tt.name, row)
		}
		if row.Verdict != tt.want || (tt.why == "") != (detail.Why == "") || !strings.Contains(detail.Why, tt.why) {
			t.Errorf("%s: have %s because %q, want %s because %q", tt.name, row.Verdict, detail.Why, tt.want, tt.why)
		}
	}
}

func TestEvaluateFigures(t *testing.T) {
	// The medians are 20 and 10, but the typical ratio is not 2.
	ours := []float64{10, 20, 30, 10, 20, 30}
	direct := []float64{10, 10, 10, 10, 10, 10}
	direct[0], direct[3], direct[1], direct[4] = 2, 2, 8, 8
	row, detail, err := seriesOf(Wall, ours, direct).Evaluate(Question{
		Row: "r", Case: "c", Metric: Wall, Variant: "ours", Yardstick: "direct", Goal: 9,
	})
	if err != nil {
		t.Fatal(err)
	}
	if row.Value != 20 || row.Yardstick != 8 || row.Ratio != 3 {
		t.Errorf("have %+v, want 20, 8 and 3", row)
	}
	want := result.Spread{Rounds: 6, Min: 2.5, Q1: 2.625, Median: 3, Q3: 4.5, Max: 5, Low: 2.5, High: 5}
	if diff := cmp.Diff(want, detail.Ratio); diff != "" {
		t.Errorf("ratios (-want +got):\n%s", diff)
	}
	if detail.Seed != 3 || detail.Key() != row.Key() {
		t.Errorf("detail: have %+v", detail)
	}
	for _, q := range []Question{
		{Metric: Wall, Variant: "ours", Yardstick: "none"}, {Metric: Wall, Variant: "none", Yardstick: "direct"},
		{Metric: CPU, Variant: "ours", Yardstick: "direct"}, {Metric: Wall, Variant: "direct", Yardstick: "direct"},
	} {
		if row, _, err := seriesOf(Wall, ours, direct).Evaluate(q); err == nil {
			t.Errorf("%+v has an answer: %+v", q, row)
		}
	}
}

// The cost of a part is the difference between the whole and the variant without it, in each round
// separately.
func TestEvaluateDifferences(t *testing.T) {
	// The machine is slower in the last rounds: differences of medians would make ours look
	// cheaper.
	direct := []float64{1000, 1000, 1000, 1010, 1010, 1000, 1100, 1100, 1100, 1100, 1100}
	ours := make([]float64, len(direct))
	for i := range ours {
		ours[i] = direct[i] + []float64{200, 210, 190}[i%3]
	}
	wild := slices.Clone(ours)
	for i := range wild {
		wild[i] += []float64{-300, 0, 400}[i%3]
	}
	tests := []struct {
		name string
		ours []float64
		goal float64
		want result.Verdict
	}{
		{"within", ours, 250, result.Pass},
		{"beyond", ours, 150, result.Miss},
		{"cheaper than the yardstick", direct, 10, result.Pass},
		{"uncertain", wild, 250, result.Inconclusive},
		{"no goal", ours, 0, result.Pass},
	}
	for _, tt := range tests {
		row, detail, err := seriesOf("ns, median", tt.ours, direct).Evaluate(Question{
			Row: "r", Case: "c", Metric: "ns, median", Variant: "ours", Yardstick: "direct", Goal: tt.goal, Over: true,
		})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if _, ratio := row.GoalFigure(); ratio || row.Verdict != tt.want {
			t.Errorf("%s: have %+v (%s), want %s on the value", tt.name, row, detail.Why, tt.want)
		}
		if row.Value != detail.Value.Median || row.Yardstick != 1010 {
			t.Errorf("%s: value %v beside %v of %+v", tt.name, row.Value, row.Yardstick, detail)
		}
	}
	row, _, err := seriesOf("ns", ours, direct).Evaluate(Question{Row: "r", Case: "c", Metric: "ns", Variant: "ours", Yardstick: "direct", Over: true})
	if err != nil || row.Value != 200 {
		t.Errorf("the difference is %v, %v; want 200", row.Value, err)
	}
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	report, err := result.Begin(result.Config{
		Benchmark: "toy", Path: dir + "/toy.json", Out: new(strings.Builder), Tree: fstest.MapFS{},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := seriesOf(Wall, times(6, func(int) float64 { return 12 }), times(6, func(int) float64 { return 10 }))
	q := Question{Row: "r", Case: "c", Metric: Wall, Variant: "ours", Yardstick: "direct", Goal: 1.5}
	if err := s.Report(report, q); err != nil {
		t.Fatal(err)
	}
	if err := s.Report(report, Question{Row: "r", Case: "other", Metric: CPU, Variant: "ours", Yardstick: "direct"}); err == nil ||
		!strings.Contains(err.Error(), "answer r, other: ") {
		t.Errorf("a question without an answer: have error %v", err)
	}
	if err := report.Finish(); err != nil {
		t.Fatal(err)
	}
	rows, err := result.Load(dir + "/toy.json")
	want := []result.Row{{Row: "toy/r", Case: "c", Metric: Wall, Value: 12, Yardstick: 10, Ratio: 1.2, Goal: 1.5, Verdict: result.Pass}}
	if diff := cmp.Diff(want, rows); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestSpread(t *testing.T) {
	tests := []struct {
		figures []float64
		want    result.Spread
	}{
		{nil, result.Spread{}},
		{[]float64{5}, result.Spread{Rounds: 1, Min: 5, Q1: 5, Median: 5, Q3: 5, Max: 5, Low: 5, High: 5}},
		{[]float64{4, 1, 3, 2}, result.Spread{Rounds: 4, Min: 1, Q1: 1.75, Median: 2.5, Q3: 3.25, Max: 4, Low: 1, High: 4}},
		// From tables of the binomial distribution: the lower bound is the second of 9 figures, and
		// the sixth of 20.
		{times(9, func(i int) float64 { return float64(9 - i) }), result.Spread{Rounds: 9, Min: 1, Q1: 3, Median: 5, Q3: 7, Max: 9, Low: 2, High: 8}},
		{times(20, func(i int) float64 { return float64(i + 1) }), result.Spread{Rounds: 20, Min: 1, Q1: 5.75, Median: 10.5, Q3: 15.25, Max: 20, Low: 6, High: 15}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, Spread(tt.figures)); diff != "" {
			t.Errorf("spread of %v (-want +got):\n%s", tt.figures, diff)
		}
	}
}

func TestQuantile(t *testing.T) {
	list := slices.Sorted(slices.Values([]float64{30, 10, 20}))
	for part, want := range map[float64]float64{0: 10, 0.25: 15, 0.5: 20, 0.99: 29.8, 1: 30} {
		if got := Quantile(list, part); fmt.Sprintf("%.6f", got) != fmt.Sprintf("%.6f", want) {
			t.Errorf("at %v: have %v, want %v", part, got, want)
		}
	}
	if got := Quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: have %v", got)
	}
}

// Differences to a base are compared round by round, and changes of the base itself do not matter.
func TestAbove(t *testing.T) {
	base := times(12, func(i int) float64 { return 1000 + 10*float64(i) })
	of := func(more float64) []float64 { return times(12, func(i int) float64 { return base[i] + more }) }
	s := seriesOf(Wall, of(30), of(100))
	s.values["base"] = map[string][]float64{Wall: base}
	row, detail, err := s.Evaluate(Question{Metric: Wall, Variant: "ours", Yardstick: "direct", Above: "base", Goal: 0.4})
	if err != nil {
		t.Fatal(err)
	}
	if row.Value != 30 || row.Yardstick != 100 || row.Ratio != 0.3 || row.Verdict != result.Pass || detail.Drift != 0 {
		t.Errorf("have %+v and %+v", row, detail)
	}
	if _, _, err := s.Evaluate(Question{Metric: Wall, Variant: "ours", Yardstick: "direct", Above: "nobody"}); err == nil {
		t.Error("no error for a base that was not measured")
	}
}
