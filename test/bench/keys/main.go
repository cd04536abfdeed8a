// Command keys measures the cost of finding the flow of an IPv4 packet when keys have addresses of
// sixteen bytes, into which IPv4 addresses are mapped, compared with keys that have addresses of
// four: whether one table for both families is worth its price.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// goal is the cost allowed for wide keys, relative to narrow ones.
const goal = 1.1

// room is the size of a table in flows: more than it ever holds, as in a real one.
const room = 1 << 18

func main() {
	output := flag.String("output", "_output/bench/keys.json", "the file for the results, in JSON")
	rounds := flag.Int("rounds", 15, "rounds of each table")
	flag.Parse()
	result.Main("keys", func(ctx context.Context, _ []string, out io.Writer) error { return run(ctx, out, *output, *rounds) })
}

func run(ctx context.Context, out io.Writer, path string, rounds int) error {
	report, err := result.Begin(result.Config{Benchmark: "keys", Path: path, Out: out})
	if err != nil {
		return err
	}
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		for _, flows := range []int{1, 16 << 10, 128 << 10} {
			if err := compare(ctx, report, table{kind, flows}, rounds); err != nil {
				return fmt.Errorf("%s: %w", table{kind, flows}, err)
			}
		}
	}
	return report.Finish()
}

// compare measures narrow and wide keys in turns.
func compare(ctx context.Context, report *result.Report, t table, rounds int) error {
	narrow, err := load(t, "find_narrow", "narrow_flows", narrowKey)
	if err != nil {
		return err
	}
	defer narrow.Close()
	wide, err := load(t, "find_wide", "wide_flows", wideKey)
	if err != nil {
		return err
	}
	defer wide.Close()
	series, err := round.Run(ctx, round.Plan{
		Variants: []round.Variant{
			{Name: "4-byte addresses", Run: t.measure(narrow.Programs["find_narrow"])},
			{Name: "16-byte addresses", Run: t.measure(wide.Programs["find_wide"])},
		},
		Rounds: rounds, WarmUp: 1, Out: report.Out(),
	})
	if err != nil {
		return err
	}
	return series.Report(report, round.Question{
		Row: "established packet, IPv4", Case: t.String(), Metric: net, Variant: "16-byte addresses", Yardstick: "4-byte addresses",
		Goal: goal,
	})
}
