// Command datapath measures what the tc and XDP programs cost per packet with one to a million
// flows, beside programs that do the least possible for the same packet.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/bench/topology"
)

// The cost allowed for a packet, relative to a yardstick.
const (
	goalXDP = 1.5  // beside the bare minimum
	goalTC  = 1.6  // likewise
	goalCt  = 1.15 // of XDP, beside one lookup in a table like that of connection tracking
	goalNew = 1.3  // beside as many inserts
)

// counts is a flag: numbers separated by commas.
type counts []int

// Set parses the flag.
func (c *counts) Set(text string) error {
	*c = nil
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a number of flows", field)
		}
		*c = append(*c, n)
	}
	return nil
}

// String formats the flag.
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
	result.Main("datapath", run)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{flows: counts{1, 1000, 16_000, 128_000, 1_000_000}}
	flags := flag.NewFlagSet("datapath", flag.ContinueOnError)
	flags.StringVar(&o.output, "output", "_output/bench/datapath.json", "the `file` for the results, in JSON")
	flags.StringVar(&o.only, "only", "", "measure only rows that contain this")
	flags.IntVar(&o.rounds, "rounds", 11, "rounds of every kind of packet")
	flags.Float64Var(&o.effort, "effort", 1, "multiple of the usual number of packets in each run")
	flags.Var(&o.flows, "flows", "numbers of flows, such as 1,1000")
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
	for _, family := range []topology.Family{topology.IPv4, topology.IPv6} {
		if !strings.Contains("policy, "+family.String(), o.only) {
			continue
		}
		if err := o.policies(ctx, report, family); err != nil {
			return fmt.Errorf("policies, %s: %w", family, err)
		}
	}
	if strings.Contains(strings.Join(rateRows(), "; "), o.only) {
		if err := o.rates(ctx, report); err != nil {
			return fmt.Errorf("rates: %w", err)
		}
	}
	return report.Finish()
}

// measure asks all questions about a hook and an IP family.
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
	flows := max(int(o.effort*freshFlows), 2*pendingRows)
	return o.fresh(ctx, report, packets{hook: hook, family: family, flows: flows, effort: o.effort}, "new flow"+kind)
}

// Our programs on a node, with and without what they do once per tick for the first packet of a
// flow. With few flows and many packets, all but one packet in a million are without; with a
// million flows and few packets, every packet is with.
const (
	asIs   = "ours"
	within = "within a tick"
)

// The yardsticks of established flows. Both do one lookup and rewrite the packet. The bare minimum
// only has rows for requests, contiguous in memory, and short IPv4 keys: the least for a program
// that knows nothing but these packets. Connection tracking has two rows per flow, under keys that
// fit both families. For the same number of flows that takes several times the memory, which is
// decisive at some thousands of flows, when one table still fits the caches and the other does not.
const (
	bare      = "bare minimum"
	conntrack = "one conntrack lookup"
)

// established asks about packets of known flows.
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

// questions asks about both variants of our programs beside both yardsticks, and what makes the
// connection table cost what it does.
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

// roundsOf returns the number of rounds. With a million flows a round takes seconds, and every
// packet waits for memory, which takes a steady time: the minimum number of rounds is enough.
func (o options) roundsOf(flows int) int {
	if flows < 1_000_000 {
		return o.rounds
	}
	return min(o.rounds, round.MinRounds)
}

// The yardsticks of first packets. Every translation of addresses has two rows per flow, so the
// least is to insert these and nothing else, with the services and routes hard-coded in the
// program. A program without that knowledge must at least look up the frontend, and look for both
// flows among the established ones; those are in a table of their own, since a first packet must
// not evict any. Neither yardstick asks the kernel for a route.
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
		{oneInsert, minimal.NodePort{Flows: pendingRows}},
		{twoInserts, minimal.NodePort{Flows: pendingRows, BothRows: true}},
		{twoFound, minimal.NodePort{Flows: pendingRows, Lookups: leastRows}},
	} {
		table, err := p.minimum(least.with)
		if err != nil {
			return err
		}
		defer table.Close()
		variants = append(variants, round.Variant{Name: least.name, Run: p.measure(table.In)})
	}
	node, err := newNode(p, pendingRows, aboutASecond)
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
