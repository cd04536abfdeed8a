package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/bench/topology"
)

// The ways that always exist.
const (
	direct  = "direct"
	minimum = "bare minimum"
)

// setup is everything that a run needs.
type setup struct {
	options
	report *result.Report
	parts  []io.Closer

	top     *topology.Topology
	direct  *way
	minimum *way
	agents  []*agent // one for each number of services
	ways    []*way   // through the agents' programs
	proxies []*proxy
}

// Close closes everything in reverse order.
func (s *setup) Close() error {
	var errs []error
	for _, part := range slices.Backward(s.parts) {
		errs = append(errs, part.Close())
	}
	return errors.Join(errs...)
}

func (s *setup) build(ctx context.Context) error {
	var err error
	if s.top, err = topology.NewRouted(topology.Knobs{}); err != nil {
		return err
	}
	s.parts = append(s.parts, s.top)
	s.direct = &way{name: direct, top: s.top}
	s.minimum = s.newMinimum()
	for _, n := range s.services {
		f := fleet{n, s.top.Servers[0].Addr}
		fmt.Fprintf(s.report.Out(), "filling the maps with %s\n", f)
		a, err := newAgent(f)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		s.parts = append(s.parts, a)
		s.agents = append(s.agents, a)
		s.ways = append(s.ways, s.through(f.String(), f, a.hooks))
	}
	return s.startProxies(ctx)
}

// newMinimum returns the way through programs that know a single service, which is a constant.
func (s *setup) newMinimum() *way {
	f := fleet{1, s.top.Servers[0].Addr}
	socket := minimal.Socket{PeerName: true, Datagrams: true}
	for _, family := range families() {
		backend := f.server(family)
		socket.Pairs = append(socket.Pairs, minimal.Pair{
			Frontend: f.frontend(family), Backend: netip.AddrPortFrom(backend, serverPort),
		})
	}
	return &way{name: minimum, top: s.top, dial: f.frontend, attach: func() (io.Closer, error) {
		return minimal.AttachSocket(s.top.Cgroup, socket)
	}}
}

// through returns the way to a fleet's server through its service.
func (s *setup) through(name string, f fleet, hooks []hook) *way {
	return &way{name: name, top: s.top, dial: f.frontend, attach: func() (io.Closer, error) { return attach(s.top.Cgroup, hooks) }}
}

// past returns the way directly to the server, with the programs attached.
func (s *setup) past(name string, hooks []hook) *way {
	w := s.through(name, fleet{}, hooks)
	w.dial = nil
	return w
}

// measureTraffic measures every kind of traffic over every way.
func (s *setup) measureTraffic(ctx context.Context) error {
	past := s.past("to no service, "+s.ways[0].name+" there", s.agents[0].hooks)
	for _, what := range workloads(s.effort) {
		for _, family := range families() {
			row := what.row + ", " + family.String()
			if !strings.Contains(row, s.only) {
				continue
			}
			proxies := s.proxyWays(what, family)
			series, err := s.turns(ctx, what, family, slices.Concat([]*way{s.direct, s.minimum, past}, s.ways, proxies))
			if err != nil {
				return fmt.Errorf("%s: %w", row, err)
			}
			var questions []round.Question
			for _, w := range append([]*way{past}, s.ways...) {
				beside := s.direct
				if what.yardstick == minimum {
					beside = s.minimum
				}
				questions = append(questions, what.ask(row, w, beside, true)...)
			}
			for _, w := range append([]*way{s.minimum}, proxies...) {
				questions = append(questions, what.ask(row, w, s.direct, false)...)
			}
			if err := series.Report(s.report, append(questions, s.askAgainst(what, proxies)...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// turns measures one kind of traffic over several ways in turns.
func (s *setup) turns(ctx context.Context, what workload, family topology.Family, ways []*way) (*round.Series, error) {
	var variants []round.Variant
	for _, w := range ways {
		variants = append(variants, w.variant(what, family))
	}
	fmt.Fprintf(s.report.Out(), "%s, %s: ", what.row, family)
	return round.Run(ctx, round.Plan{Variants: variants, Rounds: s.rounds, WarmUp: 1, Out: s.report.Out()})
}

// measureRecords measures the cost of the record of a connected socket in each place.
func (s *setup) measureRecords(ctx context.Context) error {
	f := fleet{s.services[0], s.top.Servers[0].Addr}
	ways := []*way{s.direct}
	for _, r := range records() {
		hooks, err := r.load(s.agents[0].maps)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		s.parts = append(s.parts, hooks)
		ways = append(ways, s.through(r.name, f, hooks), s.past(r.name+", to no service", hooks))
	}
	for _, what := range workloads(s.effort) {
		row := "record, " + what.row
		if !what.connects || !strings.Contains(row, s.only) {
			continue
		}
		series, err := s.turns(ctx, what, topology.IPv4, ways)
		if err != nil {
			return fmt.Errorf("%s: %w", row, err)
		}
		for _, w := range ways[1:] {
			questions := []round.Question{
				{Row: row, Case: w.name, Metric: least, Variant: w.name, Yardstick: direct, Over: true},
				{Row: row, Case: w.name, Metric: median, Variant: w.name, Yardstick: direct, Over: true},
			}
			if err := series.Report(s.report, questions...); err != nil {
				return err
			}
		}
	}
	return nil
}
