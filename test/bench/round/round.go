// Package round measures variants of the same work against each other on a machine that others use too.
//
// The variants take turns: a round runs each of them once, in an order that changes from round to round, and what is
// judged is the ratio of a variant to its yardstick within a round. What slows the machine for longer than a round
// slows both and cancels; what hits single runs is an outlier of which a median takes no notice. Only when the
// yardstick itself tells of another machine at the end than at the beginning is nothing judged.
//
// A variant says how many operations it did and how many reached the far end, which counts by itself. One that claims
// more than arrived is broken, and a broken variant is an error and not a measurement: dropping is faster than
// delivering.
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

// What the runner measures of every variant, beside what the variant says. Each is per operation. The CPU
// time of a process may have that of softirqs in it, which run on its back; how much of them depends on how the kernel
// was built. So the two are never added up.
const (
	Wall    = "ns, wall clock per operation"
	CPU     = "ns, CPU of the processes per operation"
	Softirq = "ns, softirq of the machine per operation"
)

// MinRounds is the fewest rounds that tell anything: with three in each third of the run, one slow round is not yet a
// machine that drifts.
const MinRounds = 9

// Sample is what one run of a variant found.
type Sample struct {
	Claimed uint64             // operations that were done, as the near end has it
	Arrived uint64             // operations that the far end counted; what came twice counts once
	Took    time.Duration      // for them; zero = as long as the run
	Values  map[string]float64 // more figures, by metric, such as "us, median round trip"
}

// Variant is one way to do the work. Run does some of it and must end when the context does. It should do the same
// amount every time, and enough for a tenth of a second or more if CPU times are to tell anything, which the kernel
// counts in hundredths.
type Variant struct {
	Name string
	Run  func(context.Context) (Sample, error)
}

// Meter reads the CPU time that was spent so far.
type Meter interface {
	Read() (Spent, error)
}

// Spent is CPU time.
type Spent struct{ Processes, Softirq time.Duration }

// Plan is what is to be run.
type Plan struct {
	Variants []Variant
	Rounds   int           // that count, at least MinRounds
	WarmUp   int           // rounds before them that do not
	Seed     uint64        // of the order; zero = by chance
	Limit    time.Duration // of one run; zero = a minute
	Out      io.Writer     // is told the seed and of every round; nil = nobody
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

// complete fills in what was left out.
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
		return fmt.Errorf("%d rounds tell nothing; take at least %d", p.Rounds, MinRounds)
	}
	if p.WarmUp < 0 {
		return fmt.Errorf("%d rounds cannot warm up", p.WarmUp)
	}
	if p.Seed == 0 {
		p.Seed = rand.Uint64()>>32 + 1 // short enough to be typed
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
			return nil, fmt.Errorf("it has a figure of its own for %q", metric)
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

// check refuses a sample that measured something else than the work.
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

// orders makes the order of each round. In as many rounds as there are variants each has every place once, by rotation,
// so none is always first after a pause. Then the order that is rotated changes, so none always follows the same one.
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
