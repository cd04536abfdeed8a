package main

import (
	"context"
	"fmt"
	"runtime"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// sizes are the sizes of messages.
var sizes = []int{1, 64, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10}

// goalSize is the size of the longest message that the goals of requests apply to.
const goalSize = 16 << 10

// The time allowed for requests relative to those by TCP, and the throughput required of streams
// and visits relative to theirs.
var goalRequest = map[string]float64{loopback: 0.60, pods: 0.50, stacked: 0.50}

const (
	goalStream = 0.95
	goalVisit  = 0.95
)

const request = "request"

// kind is a kind of traffic, a row of the table.
type kind struct {
	name      string
	run       traffic
	also      []mode // modes to measure beside past TCP and by TCP
	stacked   bool   // measure it over a node's stack too
	cores     int    // number of core placements, at most
	waiting   int    // number of these to measure with blocking calls too
	largest   int    // message, if not the largest of all
	rounds    int    // multiple of the usual number of rounds
	count     func(size int) int
	questions func(size int, where string) []round.Question
}

// fewer limits the messages of a run so that it takes some hundredths of a second.
func fewer(most, bytes int) func(size int) int {
	return func(size int) int { return min(most, bytes/size) }
}

func kinds() []kind {
	streamed := func(goal float64) func(int, string) []round.Question {
		return func(int, string) []round.Question {
			return []round.Question{{Metric: stream, Goal: goal}, {Metric: work, Goal: goal}}
		}
	}
	return []kind{
		{
			name: request, run: requests, also: []mode{held, minimum, nearby}, stacked: true, cores: 2, waiting: 2, rounds: 1, count: fewer(4000, 64<<20),
			questions: func(size int, where string) []round.Question {
				q := []round.Question{{Metric: median}, {Metric: worst}}
				if size <= goalSize {
					q[0].Goal = goalRequest[where]
				}
				return q
			},
		},
		{name: "stream", run: streams, cores: 2, waiting: 1, rounds: 4, count: fewer(30_000, 160<<20), questions: streamed(goalStream)},
		{
			name: "stream after a conversation, at once", run: turns, also: []mode{held}, cores: 2, rounds: 1, count: fewer(30_000, 160<<20),
			questions: streamed(goalStream),
		},
		{name: "streams in both directions", run: mingles, largest: inFlight, cores: 2, rounds: 2, count: fewer(30_000, 80<<20), questions: streamed(goalStream)},
		{
			name: fmt.Sprintf("requests answered in %d messages", pieces), run: fetches, largest: 4 << 10, cores: 2, rounds: 2, count: fewer(800, 1<<20),
			questions: streamed(goalStream),
		},
		{name: "stream after a conversation, later", run: streamsLater, cores: 1, rounds: 3, count: fewer(30_000, 160<<20), questions: streamed(goalStream)},
	}
}

// cores returns the placements of the two ends.
func cores() []cpus {
	list := []cpus{{"same core", 0, 0}}
	if runtime.NumCPU() > 1 {
		list = append(list, cpus{"other core", 0, 1})
	}
	return list
}

func (o *options) effortOf(count int) int { return max(int(o.effort*float64(count)), 16) }

// setting is a placement of the two ends, and the way they wait.
type setting struct {
	cpus
	way string
}

// settings returns the settings that a kind of traffic is measured in.
func (k *kind) settings(where string) (list []setting) {
	for i, c := range cores() {
		if i == k.cores || where == stacked && (!k.stacked || i > 0) {
			break
		}
		list = append(list, setting{c, epoll})
		if i < k.waiting {
			list = append(list, setting{c, blocking})
		}
	}
	return list
}

// cells measures all traffic between two ends.
func (o *options) cells(ctx context.Context, report *result.Report, s *twoNodesTwoPods) error {
	places, err := s.places()
	if err != nil {
		return err
	}
	for _, where := range []string{loopback, pods, stacked} {
		for _, k := range kinds() {
			for _, at := range k.settings(where) {
				for _, size := range o.sizes {
					if k.largest > 0 && size > k.largest {
						continue
					}
					if err := o.cell(ctx, report, s, places[where], &k, at, size); err != nil {
						return err
					}
				}
			}
		}
	}
	for _, where := range []string{loopback, pods} {
		for _, c := range cores() {
			if err := o.visiting(ctx, report, s, places[where], c); err != nil {
				return err
			}
		}
	}
	if err := o.leaving(ctx, report, s, places[pods]); err != nil {
		return err
	}
	return o.costs(ctx, report, s, places[pods])
}

// cell measures a kind of traffic with messages of one size.
func (o *options) cell(ctx context.Context, report *result.Report, s *twoNodesTwoPods, p *endpoints, k *kind, at setting, size int) error {
	row, what := k.name+", "+p.name, fmt.Sprintf("%d B, %s, %s", size, at.way, at.name)
	if !o.wants(row, what) {
		return nil
	}
	j := job{size, o.effortOf(k.count(size))}
	if at.client != at.server && k.name == request {
		j.count = max(j.count/4, 16) // both ends sleep most of the time
	}
	var variants []round.Variant
	for _, m := range append([]mode{off, on}, k.also...) {
		variants = append(variants, s.variant(p, m, at.cpus, at.way, k.run, j))
	}
	series, err := o.turns(ctx, report, row+", "+what, variants, k.rounds)
	if err != nil {
		return err
	}
	for _, q := range k.questions(size, p.name) {
		q.Row, q.Case, q.Variant, q.Yardstick = row, what, string(on), string(off)
		questions := []round.Question{q}
		for _, m := range k.also {
			q.Row, q.Variant, q.Goal = row+", "+string(m), string(m), 0
			questions = append(questions, q)
		}
		if err := series.Report(report, questions...); err != nil {
			return err
		}
	}
	return nil
}

// turns runs variants in turns, for a multiple of the usual rounds. Without effort, more rounds
// would tell nothing.
func (o *options) turns(ctx context.Context, report *result.Report, what string, variants []round.Variant, times int) (*round.Series, error) {
	if o.effort < 1 {
		times = 1
	}
	fmt.Fprintf(report.Out(), "%s: ", what)
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.rounds * times, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return series, nil
}

// visiting measures connections with one request each.
func (o *options) visiting(ctx context.Context, report *result.Report, s *twoNodesTwoPods, p *endpoints, c cpus) error {
	row, what := "connect, request, close, "+p.name, "1 B, "+c.name
	if !o.wants(row, what) {
		return nil
	}
	j := job{1, o.effortOf(2000)}
	var variants []round.Variant
	for _, m := range []mode{off, on, none} {
		variants = append(variants, round.Variant{Name: string(m), Run: func(ctx context.Context) (round.Sample, error) {
			defer context.AfterFunc(ctx, p.stop)()
			return s.visits(p, m, c, j)
		}})
	}
	series, err := o.turns(ctx, report, row+", "+what, variants, 1)
	if err != nil {
		return err
	}
	q := round.Question{Row: row, Case: what, Variant: string(on), Yardstick: string(none)}
	for _, metric := range []string{rate, ratable, worst} {
		q.Metric, q.Goal = metric, goalVisit
		if metric == worst {
			q.Goal = 0
		}
		others := q // the cost for connections that do not take part
		others.Row, others.Variant, others.Yardstick, others.Goal = row+", taking no part", string(off), string(none), 0
		if err := series.Report(report, q, others); err != nil {
			return err
		}
	}
	return nil
}
