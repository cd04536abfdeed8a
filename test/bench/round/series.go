package round

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"fairlead.io/fairlead/test/bench/result"
)

const (
	// MaxDrift is how far a yardstick may move over a run, as a fraction of it.
	MaxDrift = 0.15
	// MaxNoise is the maximum uncertainty of a figure whose interval includes its goal.
	MaxNoise = 0.15
)

// Series holds every figure of every round.
type Series struct {
	Seed   uint64
	Rounds int

	values map[string]map[string][]float64 // by variant and metric, one figure per round
}

func (s *Series) add(variant, metric string, value float64) {
	if s.values[variant] == nil {
		s.values[variant] = map[string][]float64{}
	}
	s.values[variant][metric] = append(s.values[variant][metric], value)
}

// check makes sure that figures of the same round have the same index.
func (s *Series) check() error {
	for variant, metrics := range s.values {
		for metric, values := range metrics {
			if len(values) != s.Rounds {
				return fmt.Errorf("collect the rounds: %s has %q in %d of %d of them", variant, metric, len(values), s.Rounds)
			}
		}
	}
	return nil
}

// Values returns the figures of a variant in the order of the rounds, nil if there are none.
func (s *Series) Values(variant, metric string) []float64 {
	return slices.Clone(s.values[variant][metric])
}

// Drift returns how far a variant moved over the run, as a fraction. It divides the run into thirds
// by time and returns by how much the largest of the three medians exceeds the smallest.
//
// So a machine that slows down, speeds up, or is slow for a while in the middle has a drift. One
// slow round causes none, as it does not affect the median of the ratios either; differences
// between single rounds are noise, which the interval of the ratio shows.
func (s *Series) Drift(variant, metric string) float64 {
	values := s.values[variant][metric]
	if len(values) < 3 {
		return 0
	}
	var medians []float64
	for third := range 3 {
		medians = append(medians, Spread(values[third*len(values)/3:(third+1)*len(values)/3]).Median)
	}
	least, most := slices.Min(medians), slices.Max(medians)
	switch {
	case most == 0:
		return 0
	case least == 0:
		return math.MaxFloat64
	}
	return most/least - 1
}

// Ratios returns a variant's figures divided by the yardstick's of the same round.
func (s *Series) Ratios(variant, yardstick, metric string) ([]float64, error) {
	of, in := s.values[variant][metric], s.values[yardstick][metric]
	if len(of) == 0 || len(in) == 0 {
		return nil, fmt.Errorf("compare %s with %s: %q is not known of both", variant, yardstick, metric)
	}
	ratios := make([]float64, len(of))
	for i := range ratios {
		if in[i] == 0 {
			return nil, fmt.Errorf("compare %s with %s: %q of the yardstick is 0 in round %d; let a round do more work",
				variant, yardstick, metric, i+1)
		}
		ratios[i] = of[i] / in[i]
	}
	return ratios, nil
}

// Question is a question about a series, with the goal of the answer. The metric determines whether
// more is better.
type Question struct {
	Row, Case string
	Metric    string
	Variant   string
	Yardstick string
	Goal      float64 // of the ratio; zero = no goal, and any measurement passes
	OnValue   bool    // the goal applies to the value; the yardstick only shows the machine's drift
	Above     string  // a variant whose figure in the same round is subtracted from both, such as the cost of the work common to both
	Over      bool    // the value is the difference between the variant and the yardstick in the same round, and the goal applies to it
}

// Evaluate answers a question. The row has the medians of the values and the median of the ratios of
// all rounds, which is not the ratio of the two medians. If the goal applies to the value, the
// ratio is only in the detail.
func (s *Series) Evaluate(q Question) (result.Row, result.Detail, error) {
	if q.Above != "" {
		return s.evaluateAbove(q)
	}
	ratios, err := s.Ratios(q.Variant, q.Yardstick, q.Metric)
	if err != nil {
		return result.Row{}, result.Detail{}, err
	}
	if q.Variant == q.Yardstick {
		return result.Row{}, result.Detail{}, errors.New("judge " + q.Variant + ": it is its own yardstick")
	}
	d := result.Detail{
		Variant: q.Variant, Yardstick: q.Yardstick, Seed: s.Seed,
		Value: Spread(s.values[q.Variant][q.Metric]), Against: Spread(s.values[q.Yardstick][q.Metric]), Ratio: Spread(ratios),
		Drift: s.Drift(q.Yardstick, q.Metric),
	}
	row := result.Row{
		Row: q.Row, Case: q.Case, Metric: q.Metric,
		Value: d.Value.Median, Yardstick: d.Against.Median, Ratio: d.Ratio.Median, Goal: q.Goal,
	}
	if q.Over {
		d.Value = Spread(s.differences(q))
		row.Value = d.Value.Median
	}
	if q.OnValue || q.Over {
		row.Ratio = 0
	}
	row.Verdict, d.Why = q.verdict(d)
	d.Row, d.Case, d.Metric = row.Row, row.Case, row.Metric
	return row, d, nil
}

// evaluateAbove answers a question about the difference of a variant and its yardstick to another
// variant.
func (s *Series) evaluateAbove(q Question) (result.Row, result.Detail, error) {
	above := &Series{Seed: s.Seed, Rounds: s.Rounds, values: map[string]map[string][]float64{}}
	for _, name := range []string{q.Variant, q.Yardstick} {
		of, base := s.values[name][q.Metric], s.values[q.Above][q.Metric]
		if len(of) == 0 || len(base) == 0 {
			return result.Row{}, result.Detail{}, fmt.Errorf("subtract %s from %s: %q is not known of both", q.Above, name, q.Metric)
		}
		above.values[name] = map[string][]float64{q.Metric: s.differences(Question{Variant: name, Yardstick: q.Above, Metric: q.Metric})}
	}
	q.Above = ""
	return above.Evaluate(q)
}

// differences returns by how much the variant exceeds the yardstick in each round. Unlike in
// ratios, a slow machine does not cancel out in differences, but the cost of a part is not a ratio.
func (s *Series) differences(q Question) []float64 {
	of, in := s.values[q.Variant][q.Metric], s.values[q.Yardstick][q.Metric]
	differences := make([]float64, len(of))
	for i := range differences {
		differences[i] = of[i] - in[i]
	}
	return differences
}

// verdict declines to judge if the machine changed during the run, or if chance would decide.
func (q Question) verdict(d result.Detail) (verdict result.Verdict, why string) {
	figure := d.Ratio
	if q.OnValue || q.Over {
		figure = d.Value
	}
	switch {
	case d.Drift > MaxDrift:
		return result.Inconclusive, fmt.Sprintf("the yardstick, %s, drifted by %.0f %% over the run; more than %.0f %% is too much",
			q.Yardstick, 100*d.Drift, 100*MaxDrift)
	case q.Goal == 0:
		return result.Pass, ""
	case figure.Low <= q.Goal && q.Goal <= figure.High && figure.Noise() > MaxNoise:
		return result.Inconclusive, fmt.Sprintf("between %s and %s, on both sides of the goal; let more rounds decide",
			result.Figure(figure.Low), result.Figure(figure.High))
	case result.MoreIsBetter(q.Metric):
		return result.AtLeast(figure.Median, q.Goal), ""
	}
	return result.AtMost(figure.Median, q.Goal), ""
}

// Report judges and adds the answers to a report. It stops at the first question without an answer
// and returns an error.
func (s *Series) Report(to *result.Report, questions ...Question) error {
	for _, q := range questions {
		row, detail, err := s.Evaluate(q)
		if err != nil {
			return fmt.Errorf("answer %s, %s: %w", q.Row, q.Case, err)
		}
		to.AddMeasured(row, detail)
	}
	return nil
}
