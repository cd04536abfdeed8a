// Package result is how every benchmark says what it found: rows of JSON for machines, the same rows as a table for
// people. A missed goal is a finding, not a failure.
package result

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// Verdict says how a measurement stands to its goal.
type Verdict string

// The verdicts. Inconclusive: the machine was too noisy to judge.
const (
	Pass         Verdict = "pass"
	Miss         Verdict = "miss"
	Inconclusive Verdict = "inconclusive"
)

// Row is one measurement. Yardstick is what was measured beside it in the same run, Ratio the value in its units; where
// the goal is on the value itself, both are zero.
type Row struct {
	Row       string  `json:"row"`
	Case      string  `json:"case"`
	Metric    string  `json:"metric"`
	Value     float64 `json:"value"`
	Yardstick float64 `json:"yardstick,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`
	Goal      float64 `json:"goal"`
	Verdict   Verdict `json:"verdict"`
}

// AtMost judges a figure that should be small.
func AtMost(figure, goal float64) Verdict {
	if figure <= goal {
		return Pass
	}
	return Miss
}

// Write prints the rows as a table and writes them as JSON to path.
func Write(out io.Writer, path string, rows []Row) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ROW\tCASE\tMETRIC\tVALUE\tYARDSTICK\tRATIO\tGOAL\tVERDICT")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%.4g\t%.4g\t%.4g\t%.4g\t%s\n",
			r.Row, r.Case, r.Metric, r.Value, r.Yardstick, r.Ratio, r.Goal, r.Verdict)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	text, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
