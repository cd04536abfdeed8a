// Package result is how every benchmark reports its results: as JSON rows for machines, as a table
// for people, and beside the rows a description of the machine and of the spread of the figures. A
// missed goal is a finding, not a failure.
package result

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// Verdict compares a measurement with its goal.
type Verdict string

// The verdicts. Inconclusive means that the machine was too noisy to judge.
const (
	Pass         Verdict = "pass"
	Miss         Verdict = "miss"
	Inconclusive Verdict = "inconclusive"
)

// Row is one measurement. Yardstick is the value of what was measured beside it in the same run,
// and Ratio the quotient of the two. The goal applies to the Ratio if there is one, and otherwise
// to the Value; missing figures are zero. Row, Case and Metric together identify the row. A Metric
// begins with its unit, as in "us, object to visible".
type Row struct {
	Row       string  `json:"row"`
	Case      string  `json:"case"`
	Metric    string  `json:"metric"`
	Value     float64 `json:"value"`
	Yardstick float64 `json:"yardstick"`
	Ratio     float64 `json:"ratio"`
	Goal      float64 `json:"goal"`
	Verdict   Verdict `json:"verdict"`
}

// Key identifies a measurement.
type Key struct{ Row, Case, Metric string }

// Key returns the row's key.
func (r Row) Key() Key { return Key{r.Row, r.Case, r.Metric} }

// GoalFigure returns the figure that the goal applies to, and whether that is the ratio.
func (r Row) GoalFigure() (figure float64, ratio bool) {
	if r.Ratio != 0 {
		return r.Ratio, true
	}
	return r.Value, false
}

// String returns the key in one line.
func (k Key) String() string { return k.Row + ", " + k.Case + ": " + k.Metric }

// Unit returns the unit that a metric begins with, or "" if it begins with none.
func Unit(metric string) string {
	first, _, _ := strings.Cut(metric, " ")
	first = strings.TrimSuffix(first, ",")
	switch first {
	case "ns", "us", "ms", "s", "min", "bytes", "KiB", "MiB", "GiB", "%", "pps", "Mpps", "instructions":
		return first
	}
	if strings.HasSuffix(first, "/s") {
		return first
	}
	return ""
}

// MoreIsBetter reports whether larger figures of the metric are better, which holds if its unit is
// something per second. Otherwise the metric is a cost.
func MoreIsBetter(metric string) bool {
	unit := Unit(metric)
	return strings.HasSuffix(unit, "/s") || strings.HasSuffix(unit, "pps")
}

// AtMost judges a figure that should be small.
func AtMost(figure, goal float64) Verdict {
	if figure <= goal {
		return Pass
	}
	return Miss
}

// AtLeast judges a figure that should be large.
func AtLeast(figure, goal float64) Verdict {
	if figure >= goal {
		return Pass
	}
	return Miss
}

// check rejects a list with rows that are malformed.
func check(rows []Row) error {
	seen := map[Key]bool{}
	for _, r := range rows {
		switch {
		case r.Row == "" || r.Case == "" || r.Metric == "":
			return fmt.Errorf("check the results: the row %q has no row, case or metric", r.Key())
		case seen[r.Key()]:
			return fmt.Errorf("check the results: there are two rows of %s", r.Key())
		case r.Verdict != Pass && r.Verdict != Miss && r.Verdict != Inconclusive:
			return fmt.Errorf("check the results: %s: %q is no verdict", r.Key(), r.Verdict)
		}
		for _, figure := range []float64{r.Value, r.Yardstick, r.Ratio, r.Goal} {
			if math.IsNaN(figure) || math.IsInf(figure, 0) {
				return fmt.Errorf("check the results: %s: %v is no figure", r.Key(), figure)
			}
		}
		seen[r.Key()] = true
	}
	return nil
}

// Table prints rows for people. Missing figures are dashes.
func Table(out io.Writer, rows []Row) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ROW\tCASE\tMETRIC\tVALUE\tYARDSTICK\tRATIO\tGOAL\tVERDICT")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			r.Row, r.Case, r.Metric, Figure(r.Value), measured(r.Yardstick), measured(r.Ratio), measured(r.Goal), r.Verdict)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	return nil
}

// Figure formats a number with three or four significant digits, without an exponent.
func Figure(v float64) string {
	digits := 3
	for size := math.Abs(v); size >= 9.9995 && digits > 0; size /= 10 {
		digits--
	}
	for size := math.Abs(v); size != 0 && size < 0.1 && digits < 9; size *= 10 {
		digits++
	}
	text := fmt.Sprintf("%.*f", digits, v)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

func measured(v float64) string {
	if v == 0 {
		return "-"
	}
	return Figure(v)
}
