package round

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"fairlead.io/fairlead/test/bench/result"
)

const (
	// MaxDrift is how far a yardstick may move over a run, as a part of it.
	MaxDrift = 0.15
	// MaxNoise is how uncertain a figure may be that is on both sides of its goal.
	MaxNoise = 0.15
)

// Series is every figure of every round.
type Series struct {
	Seed   uint64
	Rounds int

	values map[string]map[string][]float64 // by variant and metric, a figure a round
}

func (s *Series) add(variant, metric string, value float64) {
	if s.values[variant] == nil {
		s.values[variant] = map[string][]float64{}
	}
	s.values[variant][metric] = append(s.values[variant][metric], value)
}

// check makes sure that figures of the same round stand at the same place.
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

// Values returns the figures of a variant in the order of the rounds, nil where there are none.
func (s *Series) Values(variant, metric string) []float64 {
	return slices.Clone(s.values[variant][metric])
}

// Drift returns how far a variant moved over the run, as a part of it. The run is cut into thirds by time, each third is
// told by its median, and the drift is by how much the largest of the three is above the smallest.
//
// So a machine that slows down, speeds up, or is slow for a while in the middle has a drift. One slow round has none,
// since the ratios' median takes no notice of it either; that rounds differ among each other is noise, and told by the
// interval of the ratio.
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

// Ratios returns a variant's figures in units of the yardstick's of the same round.
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

// Question is what is asked of a series, and the goal of the answer. Whether more is better follows from the metric.
type Question struct {
	Row, Case string
	Metric    string
	Variant   string
	Yardstick string
	Goal      float64 // of the ratio; zero = there is none, and whatever was measured passes
	OnValue   bool    // the goal is on the value, and the yardstick there to tell the machine's drift
	Above     string  // a variant whose figure of the same round is taken off both, such as what the work costs without what is compared
	Over      bool    // the value is by how much the variant is above the yardstick of the same round, and the goal on that
}

// Judge answers a question. The row has the medians of the values and the median of the ratios of each round, which is
// not the ratio of the two medians. Where the goal is on the value, the ratio is only in the detail.
func (s *Series) Judge(q Question) (result.Row, result.Detail, error) {
	if q.Above != "" {
		return s.judgeAbove(q)
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

// judgeAbove answers a question about what a variant and its yardstick are above another one.
func (s *Series) judgeAbove(q Question) (result.Row, result.Detail, error) {
	above := &Series{Seed: s.Seed, Rounds: s.Rounds, values: map[string]map[string][]float64{}}
	for _, name := range []string{q.Variant, q.Yardstick} {
		of, base := s.values[name][q.Metric], s.values[q.Above][q.Metric]
		if len(of) == 0 || len(base) == 0 {
			return result.Row{}, result.Detail{}, fmt.Errorf("take %s off %s: %q is not known of both", q.Above, name, q.Metric)
		}
		above.values[name] = map[string][]float64{q.Metric: s.differences(Question{Variant: name, Yardstick: q.Above, Metric: q.Metric})}
	}
	q.Above = ""
	return above.Judge(q)
}

// differences returns by how much the variant is above the yardstick in each round. What slows the machine as a whole
// does not cancel in them as in ratios, but what a part costs is no ratio.
func (s *Series) differences(q Question) []float64 {
	of, in := s.values[q.Variant][q.Metric], s.values[q.Yardstick][q.Metric]
	differences := make([]float64, len(of))
	for i := range differences {
		differences[i] = of[i] - in[i]
	}
	return differences
}

// verdict refuses to judge where the machine changed under the run, and where chance would decide.
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

// Report judges and adds the answers to a report, and the first question that has none is an error.
func (s *Series) Report(to *result.Report, questions ...Question) error {
	for _, q := range questions {
		row, detail, err := s.Judge(q)
		if err != nil {
			return fmt.Errorf("answer %s, %s: %w", q.Row, q.Case, err)
		}
		to.AddMeasured(row, detail)
	}
	return nil
}
