// Command control measures the control path on real maps: what one change of endpoints costs with few and with many
// services, what a cold start costs, and how much memory the agent keeps per service. Times are judged as multiples of
// one raw map update measured in the same run, where the goal is such a multiple.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	output := flag.String("output", "_output/bench/control.json", "where the JSON goes")
	scale := flag.Int("scale", 1, "divide every number of services by this, for a quick look")
	sleeps := flag.Bool("sleep", false, "be the control process, which only sleeps, until the input ends")
	flag.Parse()
	if *sleeps {
		if err := sleep(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench-control: sleep:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(os.Stdout, *output, *scale); err != nil {
		fmt.Fprintln(os.Stderr, "bench-control:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, path string, scale int) error {
	// Whoever waits for a change here spins, in the place of another process. It must not hold one of the few threads
	// that Go gives the agent, which would make the agent wait for it.
	runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	report, err := result.Begin(result.Config{Benchmark: "control", Path: path, Out: out})
	if err != nil {
		return err
	}
	var small float64
	for _, services := range []int{1_000, 20_000, 100_000} {
		r, err := change(services / scale)
		if err != nil {
			return fmt.Errorf("one change with %d services: %w", services, err)
		}
		if small == 0 {
			small = r[0].Ratio
		}
		flat := result.Row{
			Row: "change", Case: r[0].Case, Metric: "median ratio over that of the smallest", Value: r[0].Ratio / small, Goal: 1.5,
		}
		flat.Verdict = result.AtMost(flat.Value, flat.Goal)
		report.Add(append(r, flat)...)
	}
	for _, c := range []struct {
		services, endpoints int
		goal                float64 // seconds
	}{{50_000, 1, 50_000 * 12e-6}, {100_000, 10, 4}} {
		r, err := cold(c.services/scale, c.endpoints, c.goal/float64(scale))
		if err != nil {
			return fmt.Errorf("cold load of %d services: %w", c.services, err)
		}
		report.Add(r...)
	}
	r, err := heap(50_000 / scale)
	if err != nil {
		return fmt.Errorf("heap: %w", err)
	}
	report.Add(r)
	return report.Finish()
}

func quantile(list []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
