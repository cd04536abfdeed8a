// Command bandwidth measures what keeping a pod to a rate does to its requests: a pod of the real agent beside the same pods behind
// HTB and TBF, in virtual machines, since that takes a kernel with all of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

func main() {
	if code, ok := funcs().Dispatch(os.Args); ok {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench-bandwidth:", err)
		os.Exit(1)
	}
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
	flags.StringVar(&o.binaries, "binaries", "_output/bench/bin", "the `folder` with fairlead, fairlead-cni and bandwidth itself, static ones")
	flags.StringVar(&o.output, "output", "_output/bench/bandwidth.json", "the `file` that the JSON goes to")
	flags.StringVar(&o.only, "only", "", "measure only what has this in its row")
	flags.StringVar(&o.kernels, "kernels", "6.1 7.2", "which of Debian's kernels boot, one after the other, as test/kernels calls them")
	flags.IntVar(&o.rounds, "rounds", 9, "rounds of every load")
	flags.DurationVar(&o.window, "window", 2*time.Second, "for how long requests count in each run")
	flags.BoolVar(&o.here, "here", false, "measure on the kernel that runs here, in no virtual machine")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q is not understood; see -h", flags.Args())
	case o.window <= 0:
		return o, fmt.Errorf("in a window of %s there is nothing to see", o.window)
	case o.rounds < round.MinRounds:
		return o, fmt.Errorf("%d rounds tell nothing; take at least %d", o.rounds, round.MinRounds)
	case len(strings.Fields(o.kernels)) == 0 && !o.here:
		return o, errors.New("no kernel is named")
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
	return report.Finish()
}
