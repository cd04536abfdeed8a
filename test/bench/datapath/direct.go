package main

import (
	"context"
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// goalDirect is the cost allowed for the first packet of a flow whose backend answers the client
// itself, relative to the yardstick.
const goalDirect = 1.7

// directFlows is the number of established flows. Each has one row, among those that may be
// evicted.
const directFlows = 1000

// The yardstick of direct server return does one insert for the first packet of a flow, or one
// lookup for any other, and adds a header. Removing the header again is counted too, for our
// programs as for the yardstick. As with SNAT, a program that does not know that a packet is the
// first must look up the frontend and look for the flow among the established ones.
const (
	wrapped      = "one lookup or insert, and a header"
	wrappedFound = "one insert after a look, and a header"
	snat         = "SNAT"
)

// wrapping is a way to pass a packet to another node as its client sent it.
type wrapping struct {
	name string
	mode bpf.MapsDsrMode
}

func wrappings() []wrapping {
	return []wrapping{{"ipip", bpf.MapsDsrModeDSR_IPIP}, {"geneve", bpf.MapsDsrModeDSR_GENEVE}, {"opt", bpf.MapsDsrModeDSR_OPT}}
}

// direct asks about flows whose backends answer their clients themselves: about first packets, and
// about packets of established flows.
func (o options) direct(ctx context.Context, report *result.Report, p packets, row string) error {
	begun := p
	begun.flows = max(int(o.effort*freshFlows), 2*pendingRows)
	for _, ask := range []struct {
		packets
		what string
		goal float64
	}{{begun, "new flow", goalDirect}, {p, fmt.Sprintf("%d flows", p.flows), 0}} {
		if err := o.wrap(ctx, report, ask.packets, row, ask.what, ask.goal); err != nil {
			return fmt.Errorf("%s: %w", ask.what, err)
		}
	}
	return nil
}

func (o options) wrap(ctx context.Context, report *result.Report, p packets, row, what string, goal float64) (err error) {
	var parts []func() error
	defer func() {
		for _, end := range parts {
			err = errors.Join(err, end())
		}
	}()
	ballast, err := layBallast()
	if err != nil {
		return err
	}
	parts = append(parts, ballast.Close)
	longer := p
	longer.isWrapped = true
	table, err := p.minimum(minimal.NodePort{Flows: pendingRows, Wraps: true})
	if err != nil {
		return err
	}
	parts = append(parts, table.Close)
	variants := []round.Variant{{Name: wrapped, Run: longer.measure(table.In)}}
	var questions []round.Question
	if goal != 0 {
		table, err := p.minimum(minimal.NodePort{Flows: pendingRows, Wraps: true, Lookups: leastRows})
		if err != nil {
			return err
		}
		parts = append(parts, table.Close)
		variants = append(variants, round.Variant{Name: wrappedFound, Run: longer.measure(table.In)})
		questions = append(questions, round.Question{Row: row + ", " + what, Case: "the look", Metric: net, Variant: wrappedFound, Yardstick: wrapped})
	}
	for _, w := range append([]wrapping{{snat, bpf.MapsDsrModeDSR_OFF}}, wrappings()...) {
		is := longer
		is.isWrapped = w.mode != bpf.MapsDsrModeDSR_OFF
		n, err := newNode(is, 2*p.flows, aboutASecond)
		if err != nil {
			return err
		}
		parts = append(parts, n.Close)
		if err := n.answersItself(w.mode, goal == 0); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		variants = append(variants, round.Variant{Name: w.name, Run: n.measure()})
		if w.mode == bpf.MapsDsrModeDSR_OFF {
			continue
		}
		questions = append(questions,
			round.Question{Row: row + ", " + what, Case: w.name, Metric: net, Variant: w.name, Yardstick: wrapped, Goal: goal},
			round.Question{Row: row + ", " + what, Case: w.name + ", beside " + snat, Metric: net, Variant: w.name, Yardstick: snat})
		if goal != 0 {
			questions = append(questions, round.Question{
				Row: row + ", " + what, Case: w.name + ", beside " + wrappedFound, Metric: net, Variant: w.name, Yardstick: wrappedFound,
			})
		}
	}
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.rounds, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return err
	}
	return series.Report(report, questions...)
}

// answersItself turns direct answers of the backends on or off, and establishes the flows if they
// are to be known.
func (n *node) answersItself(mode bpf.MapsDsrMode, known bool) error {
	tables, err := n.maps.Tables()
	if err != nil {
		return err
	}
	tables.Services[service].Flags |= maps.DirectFlags(uint8(mode))
	if err := tables.Close(); err != nil || !known {
		return err
	}
	if mode == bpf.MapsDsrModeDSR_OFF {
		return n.establish()
	}
	return n.netns.Do(func() error { return n.fill(n.program) })
}
