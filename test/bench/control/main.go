// Command control measures the control path on real maps: the cost of one change of endpoints with
// few and with many services, the cost of a cold start, and the agent's memory per service. Times
// are measured in rounds, beside raw map updates.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	output := flag.String("output", "_output/bench/control.json", "the file for the results, in JSON")
	scale := flag.Int("scale", 1, "divide every number of services by this, for a quick look")
	sleeps := flag.Bool("sleep", false, "act as the control process, which only sleeps until its input ends")
	flag.Parse()
	if *sleeps {
		if err := sleep(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench-control: sleep:", err)
			os.Exit(1)
		}
		return
	}
	result.Main("control", func(ctx context.Context, _ []string, out io.Writer) error { return run(ctx, out, *output, *scale) })
}

func run(ctx context.Context, out io.Writer, path string, scale int) error {
	// The goroutine that waits for a change spins, in place of another process. It must not hold
	// one of the few threads that Go gives the agent, or the agent would wait for it.
	runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	report, err := result.Begin(result.Config{Benchmark: "control", Path: path, Out: out})
	if err != nil {
		return err
	}
	if err := measureChanges(ctx, report, []int{1_000 / scale, 20_000 / scale, 100_000 / scale}); err != nil {
		return fmt.Errorf("one change: %w", err)
	}
	if err := measureCold(ctx, report, []coldStart{
		{50_000 / scale, 1, 12 * time.Microsecond}, {100_000 / scale, 10, 40 * time.Microsecond},
	}); err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	r, err := heap(50_000 / scale)
	if err != nil {
		return fmt.Errorf("heap: %w", err)
	}
	report.Add(r)
	return report.Finish()
}
