// Package round compares variants of the same work on a machine that others use too.
//
// The variants take turns: a round runs each of them once, in an order that changes from round to
// round, and the ratio of a variant to its yardstick within a round is judged. Whatever slows the
// machine for longer than a round slows both and cancels out; whatever hits single runs is an
// outlier that does not affect a median. Nothing is judged only if the yardstick itself shows that
// the machine changed between the beginning and the end.
//
// A variant reports how many operations it did and how many reached the far end, which counts
// independently. A variant that claims more than arrived is broken, which is an error and not a
// measurement: dropping is faster than delivering.
package round

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// What the runner measures of every variant, beside the variant's own figures. Each is per
// operation. The CPU time of a process may include softirqs that interrupted it; how much of them
// depends on how the kernel was built. So the two are never added up.
const (
	Wall    = "ns, wall clock per operation"
	CPU     = "ns, CPU of the processes per operation"
	Softirq = "ns, softirq of the machine per operation"
)

// MinRounds is the minimum number of rounds: with three in each third of the run, one slow round
// does not yet look like a machine that drifts.
const MinRounds = 9

// Sample is the result of one run of a variant.
type Sample struct {
	Claimed uint64             // operations done, according to the near end
	Arrived uint64             // operations that the far end counted; duplicates count once
	Took    time.Duration      // time for them; zero = that of the whole run
	Values  map[string]float64 // more figures, by metric, such as "us, median round trip"
}

// Variant is one way to do the work. Run does some of it and must end when the context does. It
// should do the same amount every time, and take at least a tenth of a second if CPU times are to
// be meaningful, since the kernel counts them in hundredths.
type Variant struct {
	Name string
	Run  func(context.Context) (Sample, error)
}

// Meter reads the CPU time spent so far.
type Meter interface {
	Read() (Spent, error)
}

// Spent is CPU time.
type Spent struct{ Processes, Softirq time.Duration }

// Plan describes what to run.
type Plan struct {
	Variants []Variant
	Rounds   int           // rounds that count, at least MinRounds
	WarmUp   int           // rounds before them that do not count
	Seed     uint64        // of the random order; zero = random
	Limit    time.Duration // time limit of one run; zero = a minute
	Out      io.Writer     // receives the seed and a note on every round; nil = none
	Meter    Meter         // nil = CPU time is not measured
	Now      func() time.Time
}

// Run runs the plan and returns every figure of every round that counts.
func Run(ctx context.Context, plan Plan) (*Series, error) {
	if err := plan.complete(); err != nil {
		return nil, fmt.Errorf("plan the rounds: %w", err)
	}
	names := make([]string, len(plan.Variants))
	for i, v := range plan.Variants {
		names[i] = v.Name
	}
	fmt.Fprintf(plan.Out, "%d rounds of %s after %d to warm up, seed %d\n", plan.Rounds, strings.Join(names, ", "), plan.WarmUp, plan.Seed)
	series := &Series{Seed: plan.Seed, Rounds: plan.Rounds, values: map[string]map[string][]float64{}}
	orders := newOrders(len(plan.Variants), plan.Seed)
	for n := range plan.WarmUp + plan.Rounds {
		for _, i := range orders.next() {
			values, err := plan.one(ctx, plan.Variants[i])
			if err != nil {
				return nil, fmt.Errorf("run %s in round %d (seed %d): %w", names[i], n+1, plan.Seed, err)
			}
			if n < plan.WarmUp {
				continue
			}
			for metric, value := range values {
				series.add(names[i], metric, value)
			}
		}
	}
	if err := series.check(); err != nil {
		return nil, err
	}
	return series, series.Print(plan.Out)
}

// complete checks the plan and fills in defaults.
func (p *Plan) complete() error {
	if len(p.Variants) == 0 {
		return errors.New("there is no variant")
	}
	seen := map[string]bool{}
	for _, v := range p.Variants {
		if v.Name == "" || v.Run == nil || seen[v.Name] {
			return fmt.Errorf("variant %q has no name of its own or nothing to run", v.Name)
		}
		seen[v.Name] = true
	}
	if p.Rounds < MinRounds {
		return fmt.Errorf("%d rounds are too few; use at least %d", p.Rounds, MinRounds)
	}
	if p.WarmUp < 0 {
		return fmt.Errorf("%d rounds cannot warm up", p.WarmUp)
	}
	if p.Seed == 0 {
		p.Seed = rand.Uint64()>>32 + 1 // short enough to type
	}
	if p.Limit == 0 {
		p.Limit = time.Minute
	}
	if p.Out == nil {
		p.Out = io.Discard
	}
	if p.Now == nil {
		p.Now = time.Now
	}
	return nil
}

// one runs a variant once.
func (p *Plan) one(ctx context.Context, v Variant) (map[string]float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Limit, fmt.Errorf("it stalled: it had not ended after %v", p.Limit))
	defer cancel()
	before, err := p.spent()
	if err != nil {
		return nil, err
	}
	start := p.Now()
	sample, err := v.Run(ctx)
	took := p.Now().Sub(start)
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, err
	}
	after, err := p.spent()
	if err != nil {
		return nil, err
	}
	if sample.Took != 0 {
		took = sample.Took
	}
	if err := sample.check(took); err != nil {
		return nil, err
	}
	values := map[string]float64{Wall: float64(took) / float64(sample.Claimed)}
	if p.Meter != nil {
		values[CPU] = float64(after.Processes-before.Processes) / float64(sample.Claimed)
		values[Softirq] = float64(after.Softirq-before.Softirq) / float64(sample.Claimed)
	}
	for metric, value := range sample.Values {
		if _, taken := values[metric]; taken {
			return nil, fmt.Errorf("the variant has a figure of its own for %q", metric)
		}
		values[metric] = value
	}
	return values, nil
}

func (p *Plan) spent() (Spent, error) {
	if p.Meter == nil {
		return Spent{}, nil
	}
	return p.Meter.Read()
}

// check rejects a sample that did not measure the work.
func (s Sample) check(took time.Duration) error {
	switch {
	case s.Claimed == 0:
		return errors.New("it stalled: it did no operation")
	case s.Arrived < s.Claimed:
		return fmt.Errorf("it claims %d operations, and %d arrived at the far end", s.Claimed, s.Arrived)
	case took <= 0:
		return fmt.Errorf("%d operations took %v", s.Claimed, took)
	}
	for metric, value := range s.Values {
		if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
			return fmt.Errorf("its figure of %q is %v", metric, value)
		}
	}
	return nil
}

// orders generates the order of each round. By rotation, each variant has every place once in as
// many rounds as there are variants, so none is always first after a pause. Then the rotated order
// changes, so none always follows the same one.
type orders struct {
	random *rand.Rand
	order  []int
	turn   int
}

func newOrders(variants int, seed uint64) *orders {
	o := &orders{random: rand.New(rand.NewPCG(seed, 0))}
	for i := range variants {
		o.order = append(o.order, i)
	}
	return o
}

func (o *orders) next() []int {
	if o.turn%len(o.order) == 0 {
		o.random.Shuffle(len(o.order), func(i, j int) { o.order[i], o.order[j] = o.order[j], o.order[i] })
	} else {
		last := len(o.order) - 1
		o.order = slices.Insert(o.order[:last:last], 0, o.order[last])
	}
	o.turn++
	return o.order
}
