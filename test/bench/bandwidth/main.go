// Command bandwidth measures how keeping a pod to a rate affects its requests: a pod of the real
// agent is compared with pods behind HTB and TBF. It runs in virtual machines, since it needs a
// kernel that has all of these.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/plot"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

func main() {
	if code, ok := funcs().Dispatch(os.Args); ok {
		os.Exit(code)
	}
	result.Main("bandwidth", run)
}

// options are the flags.
type options struct {
	binaries string
	output   string
	only     string
	kernels  string
	rounds   int
	window   time.Duration
	here     bool
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bandwidth", flag.ContinueOnError)
	flags.StringVar(&o.binaries, "binaries", "_output/bench/bin", "the `folder` with fairlead, fairlead-cni and bandwidth itself, statically linked")
	flags.StringVar(&o.output, "output", "_output/bench/bandwidth.json", "the `file` for the results, in JSON")
	flags.StringVar(&o.only, "only", "", "measure only rows that contain this")
	flags.StringVar(&o.kernels, "kernels", "6.1 7.2", "Debian's kernels to boot, one after another, by their names in test/kernels")
	flags.IntVar(&o.rounds, "rounds", 9, "rounds of every load")
	flags.DurationVar(&o.window, "window", 2*time.Second, "how long requests are counted in each run")
	flags.BoolVar(&o.here, "here", false, "measure on the running kernel, without a virtual machine")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected arguments %q; see -h", flags.Args())
	case o.window <= 0:
		return o, fmt.Errorf("a window of %s is too short", o.window)
	case o.rounds < round.MinRounds:
		return o, fmt.Errorf("%d rounds are too few; use at least %d", o.rounds, round.MinRounds)
	case len(strings.Fields(o.kernels)) == 0 && !o.here:
		return o, errors.New("no kernel named; set -kernels or -here")
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	report, err := result.Begin(result.Config{Benchmark: "bandwidth", Path: o.output, Out: out})
	if err != nil {
		return err
	}
	measure := o.inMachines
	if o.here {
		measure = o.hereNow
	}
	if err := measure(ctx, report); err != nil {
		return err
	}
	return finish(report, o.output)
}

// finish writes the results, and a picture of them beside.
func finish(report *result.Report, path string) error {
	if err := report.Finish(); err != nil {
		return err
	}
	return plot.File(path)
}
