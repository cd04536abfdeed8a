package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/machine"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// What is measured in every run.
const (
	p50  = "ms, p50"
	p95  = "ms, p95"
	p99  = "ms, p99"
	rate = "Mbit/s, of the streams"
	cost = "ms, CPU of the machine per MB" // only of streams: faster answers mean more requests, which cost more
)

// The time that requests of a pod of fairlead may take, relative to those behind HTB.
const (
	goalP95 = 1.0 / 10
	goalP99 = 1.0 / 5
)

// A rate may be at most 1/share of what a pod can send without one, so that the rate is measured and
// not the machine. With requests beside streams the limit is 1/shareAlongside, since requests need the
// machine too.
const (
	share          = 4
	shareAlongside = 4 * share
)

// filling is how long streams run before anything is counted. By then the queues are full, unless
// they take half a minute to fill.
const filling = 3 * time.Second

// The ways to keep a pod to a rate, beside the limits.
const (
	ours   = "fairlead"
	onPath = "HTB past the stack"
)

// kinds are the loads, by the name of their row, with their metrics.
var kinds = []struct {
	row     string
	load    load
	metrics []string
}{
	{"requests beside a stream", load{Streams: 1, Askers: 8, WarmUp: filling}, []string{p50, p95, p99, rate}},
	{"requests beside 16 streams", load{Streams: 16, Askers: 8, WarmUp: filling}, []string{p50, p95, p99, rate}},
	{"requests alone", load{Askers: 64, Size: 1024, WarmUp: time.Second}, []string{p50, p95, p99}},
	{"streams alone", load{Streams: 16, WarmUp: time.Second}, []string{cost, rate}},
}

// bench holds the nodes with their sinks, and the rate that pods are kept to.
type bench struct {
	options
	limited *nodeAndSink // rate kept by the agent
	past    *nodeAndSink // rate kept by HTB, on a node with the agent, whose packets bypass the stack
	plain   *nodeAndSink // rate kept by the queue at the node's eth0
	bits    int          // per second
	most    float64
}

// hereNow measures on this kernel.
func (o *options) hereNow(ctx context.Context, report *result.Report) (err error) {
	b := &bench{options: *o}
	defer func() { err = errors.Join(err, b.close()) }()
	if b.limited, err = newAgentNodeAndSink(ctx, o.binaries, "--bandwidth=true"); err != nil {
		return err
	}
	if b.past, err = newAgentNodeAndSink(ctx, o.binaries); err != nil {
		return err
	}
	if b.plain, err = newPlainNodeAndSink(); err != nil {
		return err
	}
	if err := b.choose(ctx, report); err != nil {
		return err
	}
	for _, k := range kinds {
		if !strings.Contains(k.row, o.only) {
			continue
		}
		if err := b.compare(ctx, report, k.row, k.load, k.metrics); err != nil {
			return fmt.Errorf("%s: %w", k.row, err)
		}
	}
	if !strings.Contains(trialRow, o.only) {
		return nil
	}
	return b.trial(ctx, report)
}

func (b *bench) close() error {
	var errs []error
	for _, s := range []*nodeAndSink{b.plain, b.past, b.limited} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// choose measures what a pod sends without a rate, and picks a round rate far below that, the same
// one on all machines that are fast enough.
func (b *bench) choose(ctx context.Context, report *result.Report) (err error) {
	for _, s := range []*nodeAndSink{b.limited, b.plain} {
		sample, err := s.run(ctx, load{Streams: 4, WarmUp: time.Second, Window: b.window})
		if err != nil {
			return fmt.Errorf("without a rate: %w", err)
		}
		if most := sample.Values[rate]; b.most == 0 || most < b.most {
			b.most = most
		}
	}
	for _, mbit := range []int{1, 2, 5, 10, 20} {
		if float64(mbit) <= b.most/shareAlongside {
			b.bits = mbit * 1e6
		}
	}
	if b.bits == 0 {
		return fmt.Errorf("without a rate a pod sends %.3f Mbit/s: that is too little to measure a rate", b.most)
	}
	fmt.Fprintf(report.Out(), "without a rate a pod sends %.0f Mbit/s; it is kept to %s\n", b.most, mbit(b.bits))
	b.limited.pod, err = b.limited.addLimited(ctx, "rated", map[string]int{"limited": b.bits, "rated": b.bits})
	return err
}

// compare runs a load with all the ways to keep a pod to the rate in turn.
func (b *bench) compare(ctx context.Context, report *result.Report, row string, l load, metrics []string) error {
	l.Window = b.window
	variants := []round.Variant{
		{Name: ours, Run: func(ctx context.Context) (round.Sample, error) { return b.limited.run(ctx, l) }},
		{Name: onPath, Run: func(ctx context.Context) (round.Sample, error) { return b.past.runBehind(ctx, &limits[0], b.bits, l) }},
	}
	for i := range limits {
		variants = append(variants, round.Variant{Name: limits[i].name, Run: func(ctx context.Context) (round.Sample, error) {
			return b.plain.runBehind(ctx, &limits[i], b.bits, l)
		}})
	}
	fmt.Fprintf(report.Out(), "%s, %s: ", row, mbit(b.bits))
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: b.rounds, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return err
	}
	for _, v := range variants[1:] {
		for _, metric := range metrics {
			q := round.Question{Row: row, Case: ours + " beside " + v.Name, Metric: metric, Variant: ours, Yardstick: v.Name}
			if v.Name == limits[0].name {
				q.Goal = map[string]float64{p95: goalP95, p99: goalP99}[metric]
			}
			if err := series.Report(report, q); err != nil {
				return err
			}
		}
	}
	return nil
}

// runBehind runs a load while a queue at the node's eth0 limits its rate.
func (s *nodeAndSink) runBehind(ctx context.Context, l *limit, bits int, what load) (sample round.Sample, err error) {
	err = l.during(s.node, uint64(bits/8), func() error {
		sample, err = s.run(ctx, what)
		return err
	})
	return sample, err
}

// run runs a load.
func (s *nodeAndSink) run(ctx context.Context, l load) (sample round.Sample, err error) {
	l.To = s.to
	began, err := begin(s.pod, l)
	if err != nil {
		return sample, err
	}
	defer began.Kill()
	defer context.AfterFunc(ctx, began.Kill)()
	select {
	case <-ctx.Done():
		return sample, context.Cause(ctx)
	case <-time.After(l.WarmUp):
	}
	before, err := s.read()
	if err != nil {
		return sample, err
	}
	t, err := began.count()
	if err != nil {
		return sample, err
	}
	after, err := s.read()
	if err != nil {
		return sample, err
	}
	bytes, took := float64(after.bytes-before.bytes), after.at.Sub(before.at)
	busy := after.cpu.Since(before.cpu).Busy
	sample = round.Sample{Claimed: uint64(bytes), Arrived: uint64(bytes), Took: took, Values: map[string]float64{
		rate: bytes * 8 / 1e6 / took.Seconds(),
	}}
	if l.Askers == 0 {
		sample.Values[cost] = busy.Seconds() * 1e3 / (bytes / 1e6)
		return sample, nil
	}
	sample.Claimed, sample.Arrived = uint64(t.Asked), after.asked-before.asked+uint64(l.Askers) // one of each was in flight when counting began
	sample.Values[p50], sample.Values[p95], sample.Values[p99] = t.P50, t.P95, t.P99
	return sample, nil
}

// reading is the state of the counters at one time.
type reading struct {
	at           time.Time
	bytes, asked uint64
	cpu          machine.Times
}

func (s *nodeAndSink) read() (r reading, err error) {
	if r.bytes, r.asked, err = s.came(); err != nil {
		return r, err
	}
	r.at = time.Now()
	r.cpu, err = machine.ReadTimes(os.DirFS("/"))
	return r, err
}
