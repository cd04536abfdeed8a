// Command socket measures what the socket programs cost a client: requests over a connection,
// connections, and datagrams, through few and through many services, compared with the same traffic
// directly to the pod, with programs that do the least possible, and with kube-proxy's rules. It
// also measures where the record of what a socket dialed is cheapest.
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

	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	if code, ok := flow.Funcs().Dispatch(os.Args); ok {
		os.Exit(code)
	}
	result.Main("socket", run)
}

// options are the command line's options.
type options struct {
	output   string
	rounds   int
	effort   float64
	services []int
	numbers  []int // of kube-proxy's services
	nft      int
	only     string
}

// numbers defines a flag of comma-separated numbers.
func numbers(set *flag.FlagSet, into *[]int, name, usage string) {
	set.Func(name, usage+fmt.Sprintf(" (default %s)", strings.Trim(fmt.Sprint(*into), "[]")), func(text string) error {
		*into = nil
		for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
			n, err := strconv.Atoi(field)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a number of services", field)
			}
			*into = append(*into, n)
		}
		slices.Sort(*into)
		*into = slices.Compact(*into)
		return nil
	})
}

func parse(arguments []string) (options, error) {
	o := options{services: []int{1, 1000, 20_000, 100_000}, numbers: []int{1, 1000, 20_000}}
	set := flag.NewFlagSet("socket", flag.ContinueOnError)
	set.StringVar(&o.output, "output", "_output/bench/socket.json", "the `file` for the results, in JSON")
	set.IntVar(&o.rounds, "rounds", 15, "rounds of every kind of traffic")
	set.Float64Var(&o.effort, "effort", 1, "multiple of the usual number of operations in each run")
	numbers(set, &o.services, "services", "numbers of services, such as 1,1000")
	numbers(set, &o.numbers, "kube-proxy", "numbers of services for kube-proxy; \"\" = without kube-proxy")
	set.IntVar(&o.nft, "nft-most", 1000, "maximum number of services for kube-proxy's nftables mode, which takes minutes beyond some thousand")
	set.StringVar(&o.only, "only", "", "measure only rows that contain this")
	if err := set.Parse(arguments); err != nil {
		return options{}, err
	}
	switch {
	case set.NArg() > 0:
		return options{}, fmt.Errorf("unexpected arguments %q; see -h", set.Args())
	case len(o.services) == 0:
		return options{}, errors.New("-services needs one number at least")
	case o.effort <= 0:
		return options{}, fmt.Errorf("an effort of %v does nothing", o.effort)
	}
	return o, nil
}

func run(ctx context.Context, arguments []string, out io.Writer) (err error) {
	o, err := parse(arguments)
	if err != nil {
		return err
	}
	report, err := result.Begin(result.Config{Benchmark: "socket", Path: o.output, Out: out})
	if err != nil {
		return err
	}
	s := &setup{options: o, report: report}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.build(ctx); err != nil {
		return err
	}
	if err := s.measureTraffic(ctx); err != nil {
		return err
	}
	if err := s.measureRecords(ctx); err != nil {
		return err
	}
	return report.Finish()
}
