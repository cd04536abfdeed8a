package round

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"fairlead.io/fairlead/test/bench/result"
)

// Print prints the distribution of each variant's figures for people: the minimum, the median with
// its uncertainty, and the maximum.
func (s *Series) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIANT\tMETRIC\tMIN\tMEDIAN\t\tMAX\tDRIFT")
	for _, variant := range slices.Sorted(maps.Keys(s.values)) {
		for _, metric := range slices.Sorted(maps.Keys(s.values[variant])) {
			spread := Spread(s.values[variant][metric])
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t± %.0f %%\t%s\t%.0f %%\n", variant, metric, result.Figure(spread.Min),
				result.Figure(spread.Median), 100*spread.Noise(), result.Figure(spread.Max), 100*min(s.Drift(variant, metric), 10))
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the rounds: %w", err)
	}
	return nil
}
