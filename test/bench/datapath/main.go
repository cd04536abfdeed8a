// Command datapath measures what the programs of tc and XDP cost for a packet of one to a million flows, beside programs
// that do the least anybody can do for the same packet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/bench/topology"
)

// What a packet may cost, in times of a yardstick.
const (
	goalXDP = 1.5  // beside the bare minimum
	goalTC  = 1.6  // likewise
	goalCt  = 1.15 // of XDP, beside one lookup in a table like a connection tracking's
	goalNew = 1.3  // beside as many inserts
)

// counts is a flag: numbers with commas between.
type counts []int

// Set parses the flag.
func (c *counts) Set(text string) error {
	*c = nil
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number of flows", field)
		}
		*c = append(*c, n)
	}
	return nil
}

// String writes the flag.
func (c *counts) String() string { return strings.Trim(fmt.Sprint([]int(*c)), "[]") }

// options are the flags.
type options struct {
	output string
	only   string
	rounds int
	effort float64
	flows  counts
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench-datapath:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{flows: counts{1, 1000, 16_000, 128_000, 1_000_000}}
	flags := flag.NewFlagSet("datapath", flag.ContinueOnError)
	flags.StringVar(&o.output, "output", "_output/bench/datapath.json", "the `file` that the JSON goes to")
	flags.StringVar(&o.only, "only", "", "measure only what has this in its row")
	flags.IntVar(&o.rounds, "rounds", 11, "rounds of every kind of packet")
	flags.Float64Var(&o.effort, "effort", 1, "so many times the usual packets in each run")
	flags.Var(&o.flows, "flows", "how many flows there are, as in 1,1000")
	if err := flags.Parse(args); err != nil {
		return err
	}
	report, err := result.Begin(result.Config{Benchmark: "datapath", Path: o.output, Out: out})
	if err != nil {
		return err
	}
	for _, hook := range []minimal.Hook{minimal.XDP, minimal.TC} {
		for _, family := range []topology.Family{topology.IPv4, topology.IPv6} {
			if err := o.measure(ctx, report, hook, family); err != nil {
				return fmt.Errorf("%s, %s: %w", hook, family, err)
			}
		}
	}
	if strings.Contains(strings.Join(rateRows(), "; "), o.only) {
		if err := o.rates(ctx, report); err != nil {
			return fmt.Errorf("rates: %w", err)
		}
	}
	return report.Finish()
}

// measure asks all questions about a hook and a family.
func (o options) measure(ctx context.Context, report *result.Report, hook minimal.Hook, family topology.Family) error {
	kind := fmt.Sprintf(", %s, %s", hook, family)
	for _, flows := range o.flows {
		if !strings.Contains("established"+kind, o.only) {
			break
		}
		if err := o.established(ctx, report, packets{hook: hook, family: family, flows: flows, effort: o.effort}, "established"+kind); err != nil {
			return fmt.Errorf("%d established flows: %w", flows, err)
		}
	}
	if strings.Contains("direct"+kind, o.only) {
		if err := o.direct(ctx, report, packets{hook: hook, family: family, flows: directFlows, effort: o.effort}, "direct"+kind); err != nil {
			return fmt.Errorf("backends that answer themselves: %w", err)
		}
	}
	if !strings.Contains("new flow"+kind, o.only) {
		return nil
	}
	flows := max(int(o.effort*freshFlows), 2*halfRows)
	return o.fresh(ctx, report, packets{hook: hook, family: family, flows: flows, effort: o.effort}, "new flow"+kind)
}

// Our programs on a node, and without what they do for the first packet of a flow in a tick: of few flows with many packets
// that is all of them but one in a million, of a million flows with few packets it is every one.
const (
	asIs   = "ours"
	within = "within a tick"
)

// The yardsticks of established flows. Both do one lookup and rewrite the packet. The bare minimum has rows of requests
// alone, one after the other in memory, and keys of IPv4 that are short: the least that anybody could have who knew nothing
// but these packets. A connection tracking has two rows for each flow, under keys that both families fit in: of the same number
// of flows it takes several times the memory, which at some thousands is what decides, since one is still in the caches
// then and the other is not.
const (
	bare      = "bare minimum"
	conntrack = "one conntrack lookup"
)

// established asks about packets of flows that are known.
func (o options) established(ctx context.Context, report *result.Report, p packets, row string) error {
	ballast, err := layBallast()
	if err != nil {
		return err
	}
	defer ballast.Close()
	variants := []round.Variant{}
	for _, ours := range []struct {
		name string
		tick uint32
	}{{asIs, aboutASecond}, {within, endless}} {
		node, err := newNode(p, 2*p.flows, ours.tick)
		if err != nil {
			return err
		}
		defer node.Close()
		if err := node.establish(); err != nil {
			return fmt.Errorf("establish flows: %w", err)
		}
		variants = append(variants, round.Variant{Name: ours.name, Run: node.measure()})
	}
	for _, name := range []string{bare, conntrack} {
		with := minimal.NodePort{Flows: 2 * max(p.flows, 1024)}
		if name == conntrack {
			with = minimal.NodePort{Flows: max(2*p.flows, leastRows), Conntrack: true}
		}
		table, err := p.minimum(with)
		if err != nil {
			return err
		}
		defer table.Close()
		if err := p.fill(table.In); err != nil {
			return fmt.Errorf("fill the table of the %s: %w", name, err)
		}
		variants = append(variants, round.Variant{Name: name, Run: p.measure(table.In)})
	}
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.roundsOf(p.flows), WarmUp: 1, Out: report.Out()})
	if err != nil {
		return err
	}
	return series.Report(report, p.questions(row)...)
}

// questions asks about both of ours beside both yardsticks, and who makes the table of connections what it costs.
func (p packets) questions(row string) []round.Question {
	at := fmt.Sprintf("%d flows", p.flows)
	question := func(row, variant, yardstick string, goal float64) round.Question {
		return round.Question{Row: row, Case: at, Metric: net, Variant: variant, Yardstick: yardstick, Goal: goal}
	}
	return []round.Question{
		question(row, asIs, bare, p.goal()),
		question(row+", "+within, within, bare, p.goal()),
		question(row+", beside "+conntrack, asIs, conntrack, p.goalConntrack()),
		question(row+", "+within+", beside "+conntrack, within, conntrack, p.goalConntrack()),
		question(row+", "+conntrack, conntrack, bare, 0),
	}
}

// roundsOf returns how many rounds are to be had. Of a million flows a round takes seconds, and every packet waits for memory,
// which is steady: the fewest rounds that are allowed are enough.
func (o options) roundsOf(flows int) int {
	if flows < 1_000_000 {
		return o.rounds
	}
	return min(o.rounds, round.MinRounds)
}

// The yardsticks of first packets. Two inserts are the rows that any translation of addresses has, and the least is to insert
// them and nothing else: what the program knows of services and of ways is in its code. Who cannot know has to look at the
// least for the frontend, and for the two flows among those that are established: a first packet must push none of those out, so
// they are in a table of their own. Neither asks the kernel for a way.
const (
	oneInsert  = "one insert"
	twoInserts = "two inserts"
	twoFound   = "two inserts after a look"
)

// fresh asks about first packets.
func (o options) fresh(ctx context.Context, report *result.Report, p packets, row string) error {
	ballast, err := layBallast()
	if err != nil {
		return err
	}
	defer ballast.Close()
	variants := []round.Variant{}
	for _, least := range []struct {
		name string
		with minimal.NodePort
	}{
		{oneInsert, minimal.NodePort{Flows: halfRows}},
		{twoInserts, minimal.NodePort{Flows: halfRows, BothRows: true}},
		{twoFound, minimal.NodePort{Flows: halfRows, Looks: leastRows}},
	} {
		table, err := p.minimum(least.with)
		if err != nil {
			return err
		}
		defer table.Close()
		variants = append(variants, round.Variant{Name: least.name, Run: p.measure(table.In)})
	}
	node, err := newNode(p, halfRows, aboutASecond)
	if err != nil {
		return err
	}
	defer node.Close()
	variants = append(variants, round.Variant{Name: asIs, Run: node.measure()})
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.rounds, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return err
	}
	question := func(name, variant, yardstick string, goal float64) round.Question {
		return round.Question{Row: row, Case: name, Metric: net, Variant: variant, Yardstick: yardstick, Goal: goal}
	}
	return series.Report(report,
		question("to a backend on another node", asIs, twoInserts, goalNew),
		question("to a backend on another node, beside "+twoFound, asIs, twoFound, goalNew),
		question("the least with two inserts", twoInserts, oneInsert, 0),
		question("the look", twoFound, twoInserts, 0))
}
