// Command podnet measures the cost of the pod network, with the real agent and the real plugin:
// requests and streams between pods of a node and to the outside, past the node's stack and through
// it, with and without kube-proxy's rules, and the time that the plugin takes to give a pod its
// network.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	if code, ok := flow.Funcs().Dispatch(os.Args); ok {
		os.Exit(code)
	}
	result.Main("podnet", run)
}

// options are the flags.
type options struct {
	binaries string
	output   string
	only     string
	rounds   int
	effort   float64
	services int
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("podnet", flag.ContinueOnError)
	flags.StringVar(&o.binaries, "binaries", "_output/bench/bin", "the `folder` with fairlead, fairlead-cni and byhand")
	flags.StringVar(&o.output, "output", "_output/bench/podnet.json", "the `file` for the results, in JSON")
	flags.StringVar(&o.only, "only", "", "measure only rows that contain this")
	flags.IntVar(&o.rounds, "rounds", 15, "rounds of every kind of traffic")
	flags.Float64Var(&o.effort, "effort", 1, "multiple of the usual number of operations in each run")
	flags.IntVar(&o.services, "services", 1000, "number of services that kube-proxy writes rules for; 0 = leave kube-proxy out")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected arguments %q; see -h", flags.Args())
	case o.effort <= 0:
		return o, fmt.Errorf("an effort of %v does nothing", o.effort)
	case o.services < 0:
		return o, fmt.Errorf("%d services are not possible", o.services)
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	report, err := result.Begin(result.Config{Benchmark: "podnet", Path: o.output, Out: out})
	if err != nil {
		return err
	}
	if err := o.traffic(ctx, report); err != nil {
		return err
	}
	if err := o.attaching(ctx, report); err != nil {
		return fmt.Errorf("attach pods: %w", err)
	}
	return report.Finish()
}
