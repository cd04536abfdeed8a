package main

import (
	"context"
	"fmt"
	"runtime"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// sizes of messages.
var sizes = []int{1, 64, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10}

// goalSize is the longest message that the goals of requests are for.
const goalSize = 16 << 10

// What requests may take in times of those by TCP, and what streams and visits are to have of them.
var goalRequest = map[string]float64{loopback: 0.60, pods: 0.50, stacked: 0.50}

const (
	goalStream = 0.95
	goalVisit  = 0.95
)

// kind is a row of the table.
type kind struct {
	name      string
	run       traffic
	also      []mode // those that are measured beside past TCP and by TCP
	stacked   bool   // also over a node's stack
	count     func(size int) int
	questions func(size int, where string) []round.Question
}

// The messages of a run are so many that it takes some hundredths of a second.
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
		{"request", requests, []mode{held, minimum}, true, fewer(4000, 64<<20), func(size int, where string) []round.Question {
			q := []round.Question{{Metric: median}, {Metric: worst}}
			if size <= goalSize {
				q[0].Goal = goalRequest[where]
			}
			return q
		}},
		{"stream", streams, nil, false, fewer(30_000, 160<<20), streamed(goalStream)},
		{"stream after a conversation, at once", turns, []mode{held}, false, fewer(30_000, 160<<20), streamed(0)},
		{"stream after a conversation, later", settled, nil, false, fewer(30_000, 160<<20), streamed(goalStream)},
	}
}

// cores are where the two ends run.
func cores() []cpus {
	list := []cpus{{"same core", 0, 0}}
	if runtime.NumCPU() > 1 {
		list = append(list, cpus{"other core", 0, 1})
	}
	return list
}

func (o *options) effortOf(count int) int { return max(int(o.effort*float64(count)), 16) }

// cells measures everything between two ends.
func (o *options) cells(ctx context.Context, report *result.Report, s *stage) error {
	places, err := s.places()
	if err != nil {
		return err
	}
	for _, where := range []string{loopback, pods, stacked} {
		for _, k := range kinds() {
			if where == stacked && !k.stacked {
				continue
			}
			for _, c := range cores() {
				for _, way := range []string{epoll, blocking} {
					for _, size := range o.sizes {
						if err := o.cell(ctx, report, s, places[where], &k, c, way, size); err != nil {
							return err
						}
					}
				}
			}
		}
		for _, c := range cores() {
			if err := o.visiting(ctx, report, s, places[where], c); err != nil {
				return err
			}
		}
	}
	return o.costs(ctx, report, s, places[pods])
}

// cell measures a kind of traffic with messages of one size.
func (o *options) cell(ctx context.Context, report *result.Report, s *stage, p *place, k *kind, c cpus, way string, size int) error {
	row, what := k.name+", "+p.name, fmt.Sprintf("%d B, %s, %s", size, way, c.name)
	if !o.wants(row, what) {
		return nil
	}
	j := job{size, o.effortOf(k.count(size))}
	var variants []round.Variant
	for _, m := range append([]mode{off, on}, k.also...) {
		variants = append(variants, s.variant(p, m, c, way, k.run, j))
	}
	series, err := o.turns(ctx, report, row+", "+what, variants)
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

// turns has variants take turns.
func (o *options) turns(ctx context.Context, report *result.Report, what string, variants []round.Variant) (*round.Series, error) {
	fmt.Fprintf(report.Out(), "%s: ", what)
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.rounds, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return series, nil
}

// visiting measures connections with one request each.
func (o *options) visiting(ctx context.Context, report *result.Report, s *stage, p *place, c cpus) error {
	row, what := "connect, request, close, "+p.name, "1 B, "+c.name
	if !o.wants(row, what) {
		return nil
	}
	j := job{1, o.effortOf(2000)}
	var variants []round.Variant
	for _, m := range []mode{off, on} {
		variants = append(variants, round.Variant{Name: string(m), Run: func(ctx context.Context) (round.Sample, error) {
			defer context.AfterFunc(ctx, p.stop)()
			return s.visits(p, m, c, j)
		}})
	}
	series, err := o.turns(ctx, report, row+", "+what, variants)
	if err != nil {
		return err
	}
	q := round.Question{Row: row, Case: what, Variant: string(on), Yardstick: string(off)}
	for _, metric := range []string{rate, ratable, worst} {
		q.Metric, q.Goal = metric, goalVisit
		if metric == worst {
			q.Goal = 0
		}
		if err := series.Report(report, q); err != nil {
			return err
		}
	}
	return nil
}
