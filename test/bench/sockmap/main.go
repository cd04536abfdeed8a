// Command sockmap measures what bypassing TCP does to the connections of a node: requests, streams
// and visits inside a pod and between pods that the real agent and the real plugin attach, compared
// with connections that do not take part.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/test/bench/plot"
	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	if code, ok := funcs().Dispatch(os.Args); ok {
		os.Exit(code)
	}
	result.Main("sockmap", run)
}

// options are the command line's options.
type options struct {
	binaries string
	output   string
	only     []string
	rounds   int
	effort   float64
	sizes    []int
}

func parse(args []string) (options, error) {
	o := options{sizes: sizes}
	flags := flag.NewFlagSet("sockmap", flag.ContinueOnError)
	flags.StringVar(&o.binaries, "binaries", "_output/bench/bin", "the `folder` with fairlead and fairlead-cni")
	flags.StringVar(&o.output, "output", "_output/bench/sockmap.json", "the `file` for the results, in JSON")
	flags.Func("only", "measure only what has this `text`, or that of another -only, in its row and case", func(text string) error {
		o.only = append(o.only, text)
		return nil
	})
	flags.IntVar(&o.rounds, "rounds", 11, "rounds of every cell")
	flags.Float64Var(&o.effort, "effort", 1, "multiple of the usual number of messages in each run")
	flags.Func("sizes", "sizes of messages in `bytes`, separated by commas", func(text string) error {
		o.sizes = nil
		for word := range strings.SplitSeq(text, ",") {
			size, err := strconv.Atoi(word)
			if err != nil || size < 1 || size > 1<<20 {
				return fmt.Errorf("%q is not a size of a message", word)
			}
			o.sizes = append(o.sizes, size)
		}
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected arguments %q; see -h", flags.Args())
	case o.effort <= 0:
		return o, fmt.Errorf("an effort of %v does nothing", o.effort)
	}
	return o, nil
}

// wants reports whether something is to be measured.
func (o *options) wants(row, what string) bool {
	name := row + ", " + what
	return len(o.only) == 0 || slices.ContainsFunc(o.only, func(text string) bool { return strings.Contains(name, text) })
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	report, err := result.Begin(result.Config{Benchmark: "sockmap", Path: o.output, Out: out})
	if err != nil {
		return err
	}
	s, err := newTwoNodesTwoPods(ctx, o.binaries)
	if err != nil {
		return fmt.Errorf("make a node: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, part := range []func(context.Context, *result.Report, *twoNodesTwoPods) error{o.cells, o.proxying, o.relaying, o.hazards} {
		if err := part(ctx, report, s); err != nil {
			return err
		}
	}
	if err := report.Finish(); err != nil {
		return err
	}
	return plot.File(o.output)
}
