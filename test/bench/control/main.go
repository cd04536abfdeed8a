// Command control measures the control path on real maps: the cost of one change of endpoints with
// few and with many services, the cost of a cold start, the agent's memory per service, and the time
// until an edited policy is in force. Times are measured in rounds, beside raw map updates.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	output := flag.String("output", "_output/bench/control.json", "the file for the results, in JSON")
	scale := flag.Int("scale", 1, "divide every number of services by this, for a quick look")
	only := flag.String("only", "", "measure only the parts whose name contains this: change, cold start, memory, policy")
	sleeps := flag.Bool("sleep", false, "act as the control process, which only sleeps until its input ends")
	flag.Parse()
	if *sleeps {
		if err := sleep(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench-control: sleep:", err)
			os.Exit(1)
		}
		return
	}
	result.Main("control", func(ctx context.Context, _ []string, out io.Writer) error {
		return run(ctx, out, *output, *only, *scale)
	})
}

func run(ctx context.Context, out io.Writer, path, only string, scale int) error {
	// The goroutine that waits for a change spins, in place of another process. It must not hold
	// one of the few threads that Go gives the agent, or the agent would wait for it.
	runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	report, err := result.Begin(result.Config{Benchmark: "control", Path: path, Out: out})
	if err != nil {
		return err
	}
	for _, part := range parts(ctx, report, scale) {
		if !strings.Contains(part.name, only) {
			continue
		}
		if err := part.measure(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return report.Finish()
}

// part is what -only picks.
type part struct {
	name    string
	measure func() error
}

func parts(ctx context.Context, report *result.Report, scale int) []part {
	return []part{
		{"change", func() error {
			return measureChanges(ctx, report, []int{1_000 / scale, 20_000 / scale, 100_000 / scale})
		}},
		{"cold start", func() error {
			return measureCold(ctx, report, []coldStart{{50_000 / scale, 1, 12 * time.Microsecond}, {100_000 / scale, 10, 40 * time.Microsecond}})
		}},
		{"memory", func() error {
			row, err := heap(50_000 / scale)
			if err == nil {
				report.Add(row)
			}
			return err
		}},
		{"policy", func() error {
			return measureEdits(ctx, report, 10_000/scale, []int{1, 1_000 / scale, 10_000 / scale})
		}},
	}
}
