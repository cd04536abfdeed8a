package round

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clock only advances when a variant works. It counts the runs.
type clock struct {
	now  time.Time
	runs int
}

func (c *clock) time() time.Time { return c.now }

// worker is a variant that does a hundred operations, each of which costs cost(n) in the n-th run.
func (c *clock) worker(name string, cost func(n int) time.Duration) Variant {
	n := 0
	return Variant{Name: name, Run: func(context.Context) (Sample, error) {
		c.now = c.now.Add(100 * cost(n))
		c.runs++
		n++
		return Sample{Claimed: 100, Arrived: 100}, nil
	}}
}

func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// From the sixth round on, all variants are slower by half: the values show it, the ratios do not.
func TestRatiosCancelTheMachine(t *testing.T) {
	var c clock
	slower := func(d time.Duration) func(int) time.Duration {
		return func(n int) time.Duration {
			if n >= 6 {
				return d * 3 / 2
			}
			return d
		}
	}
	var out strings.Builder
	series, err := Run(t.Context(), Plan{
		Variants: []Variant{c.worker("direct", slower(1000)), c.worker("ours", slower(1200)), c.worker("theirs", slower(3000))},
		Rounds:   12, Seed: 7, Now: c.time, Out: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	for variant, want := range map[string]float64{"ours": 1.2, "theirs": 3} {
		ratios, err := series.Ratios(variant, "direct", Wall)
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range ratios {
			if math.Abs(got-want) > 1e-9 {
				t.Errorf("%s in round %d: have the ratio %v, want %v", variant, i, got, want)
			}
		}
	}
	if got := series.Values("direct", Wall); !slices.Equal(got[4:8], []float64{1000, 1000, 1500, 1500}) {
		t.Errorf("direct: have %v", got)
	}
	const want = `12 rounds of direct, ours, theirs after 0 to warm up, seed 7
VARIANT  METRIC                        MIN   MEDIAN          MAX   DRIFT
direct   ns, wall clock per operation  1000  1250    ± 20 %  1500  50 %
ours     ns, wall clock per operation  1200  1500    ± 20 %  1800  50 %
theirs   ns, wall clock per operation  3000  3750    ± 20 %  4500  50 %
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestWarmUpDoesNotCount(t *testing.T) {
	var c clock
	cold := func(n int) time.Duration {
		if n < 2 {
			return time.Second
		}
		return time.Millisecond
	}
	series, err := Run(t.Context(), Plan{Variants: []Variant{c.worker("a", cold)}, Rounds: 9, WarmUp: 2, Now: c.time})
	if err != nil {
		t.Fatal(err)
	}
	if got := Spread(series.Values("a", Wall)); got.Max != 1e6 || got.Rounds != 9 || c.runs != 11 {
		t.Errorf("have %+v after %d runs, want 9 warm rounds and 11 runs", got, c.runs)
	}
	if series.Seed == 0 {
		t.Error("the random seed is not recorded")
	}
}

// A variant that does not deliver is an error that names the variant, the round and the problem.
func TestBrokenVariants(t *testing.T) {
	broken := errors.New("connection refused")
	tests := []struct {
		name   string
		sample Sample
		fail   error
		want   string
	}{
		{"nothing done", Sample{}, nil, "it stalled: it did no operation"},
		{"nothing arrived", Sample{Claimed: 10}, nil, "claims 10 operations, and 0 arrived"},
		{"one lost", Sample{Claimed: 10, Arrived: 9}, nil, "claims 10 operations, and 9 arrived"},
		{"more arrived", Sample{Claimed: 10, Arrived: 11}, nil, ""},
		{"failed", Sample{Claimed: 10, Arrived: 10}, broken, "connection refused"},
		{"no time", Sample{Claimed: 10, Arrived: 10, Took: -1}, nil, "took -1ns"},
		{"no figure", Sample{Claimed: 10, Arrived: 10, Values: map[string]float64{"us": math.NaN()}}, nil, `figure of "us" is NaN`},
		{"below nothing", Sample{Claimed: 10, Arrived: 10, Values: map[string]float64{"us": -1}}, nil, `figure of "us" is -1`},
		{"the runner's own", Sample{Claimed: 10, Arrived: 10, Values: map[string]float64{Wall: 1}}, nil, "a figure of its own for"},
	}
	for _, tt := range tests {
		var c clock
		good, n := c.worker("good", always(time.Millisecond)), 0
		bad := Variant{Name: "bad", Run: func(context.Context) (Sample, error) {
			c.now = c.now.Add(time.Millisecond)
			if n++; n == 3 {
				return tt.sample, tt.fail
			}
			return Sample{Claimed: 1, Arrived: 1, Values: nil}, nil
		}}
		series, err := Run(t.Context(), Plan{Variants: []Variant{good, bad}, Rounds: 9, Seed: 9, Now: c.time})
		if tt.want == "" {
			if err != nil || series == nil {
				t.Errorf("%s: refused: %v", tt.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "run bad in round 3 (seed 9): ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: have error %v, want one with %q", tt.name, err, tt.want)
		}
		if tt.fail != nil && !errors.Is(err, tt.fail) {
			t.Errorf("%s: %v does not wrap the cause", tt.name, err)
		}
	}
}

func TestStalledVariantIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := Variant{Name: "stalled", Run: func(ctx context.Context) (Sample, error) {
			<-ctx.Done()
			return Sample{}, ctx.Err()
		}}
		_, err := Run(t.Context(), Plan{Variants: []Variant{stalled}, Rounds: 9, Limit: 10 * time.Second})
		if err == nil || !strings.Contains(err.Error(), "it stalled: it had not ended after 10s") {
			t.Errorf("have error %v, want that it stalled", err)
		}
	})
}

func TestCanceledRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var c clock
	quits := Variant{Name: "a", Run: func(context.Context) (Sample, error) {
		cancel()
		return Sample{Claimed: 1, Arrived: 1, Took: 1}, nil
	}}
	_, err := Run(ctx, Plan{Variants: []Variant{quits}, Rounds: 9, Now: c.time})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("have error %v, want that it was canceled", err)
	}
}

// A figure missing in some rounds would be compared with the yardstick's of another round.
func TestMissingFigure(t *testing.T) {
	n := 0
	sometimes := Variant{Name: "a", Run: func(context.Context) (Sample, error) {
		s := Sample{Claimed: 1, Arrived: 1, Took: 1}
		if n++; n != 4 {
			s.Values = map[string]float64{"us": 1}
		}
		return s, nil
	}}
	if _, err := Run(t.Context(), Plan{Variants: []Variant{sometimes}, Rounds: 9}); err == nil || !strings.Contains(err.Error(), `"us" in 8 of 9`) {
		t.Errorf("have error %v", err)
	}
}

func TestPlanRefused(t *testing.T) {
	var c clock
	good := c.worker("a", always(1))
	for want, plan := range map[string]Plan{
		"no variant":             {Rounds: 9},
		"nothing to run":         {Rounds: 9, Variants: []Variant{{Name: "a"}}},
		`"" has no name`:         {Rounds: 9, Variants: []Variant{{Run: good.Run}}},
		`"a" has no name of its`: {Rounds: 9, Variants: []Variant{good, good}},
		"8 rounds are too few":   {Rounds: 8, Variants: []Variant{good}},
		"cannot warm up":         {Rounds: 9, WarmUp: -1, Variants: []Variant{good}},
	} {
		if _, err := Run(t.Context(), plan); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have error %v, want one with %q", err, want)
		}
	}
	if c.runs != 0 {
		t.Errorf("variants ran %d times", c.runs)
	}
}

func TestOrders(t *testing.T) {
	const variants, blocks = 4, 50
	o, again, other := newOrders(variants, 1), newOrders(variants, 1), newOrders(variants, 2)
	same, follows := true, map[string]bool{}
	for range blocks {
		var places [variants][variants]int
		var last []int
		for turn := range variants {
			order := slices.Clone(o.next())
			if diff := cmp.Diff(again.next(), order); diff != "" {
				t.Fatalf("the same seed gave another order:\n%s", diff)
			}
			same = same && slices.Equal(order, other.next())
			if turn > 0 && (order[0] != last[variants-1] || !slices.Equal(order[1:], last[:variants-1])) {
				t.Fatalf("%v is not %v rotated by one", order, last)
			}
			for place, v := range order {
				places[v][place]++
				if place > 0 {
					follows[fmt.Sprint(order[place-1], v)] = true
				}
			}
			last = order
		}
		for v, at := range places {
			if at != [variants]int{1, 1, 1, 1} {
				t.Fatalf("variant %d had the places %v in as many rounds as there are variants, want each once", v, at)
			}
		}
	}
	if same {
		t.Error("another seed gave the same orders")
	}
	if len(follows) != variants*(variants-1) {
		t.Errorf("only these followed each other: %v", follows)
	}
}

// meter counts the CPU time that the variants claim.
type meter struct {
	spent Spent
	fail  error
}

func (m *meter) Read() (Spent, error) { return m.spent, m.fail }

func TestMeter(t *testing.T) {
	m := &meter{spent: Spent{Processes: time.Hour, Softirq: time.Minute}}
	work := func(cpu, softirq time.Duration) func(context.Context) (Sample, error) {
		return func(context.Context) (Sample, error) {
			m.spent.Processes += cpu
			m.spent.Softirq += softirq
			return Sample{Claimed: 1000, Arrived: 1000, Took: time.Millisecond}, nil
		}
	}
	plan := Plan{Rounds: 9, Meter: m, Variants: []Variant{
		{Name: "here", Run: work(time.Millisecond, 0)}, {Name: "there", Run: work(time.Microsecond, 3*time.Millisecond)},
	}}
	series, err := Run(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		variant, metric string
		want            float64
	}{{"here", CPU, 1000}, {"here", Softirq, 0}, {"there", CPU, 1}, {"there", Softirq, 3000}, {"there", Wall, 1000}} {
		if got := Spread(series.Values(tt.variant, tt.metric)); got.Min != tt.want || got.Max != tt.want {
			t.Errorf("%s of %s: have %+v, want %v", tt.metric, tt.variant, got, tt.want)
		}
	}
	if _, err := series.Ratios("there", "here", Softirq); err == nil || !strings.Contains(err.Error(), "let a round do more work") {
		t.Errorf("a ratio to nothing: have error %v", err)
	}
	m.fail = errors.New("no /proc")
	if _, err := Run(t.Context(), plan); !errors.Is(err, m.fail) {
		t.Errorf("have error %v, want %v", err, m.fail)
	}
}

func TestProcMeter(t *testing.T) {
	m := NewProcMeter()
	before, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	after, err := m.Read()
	if err != nil {
		t.Fatal(err)
	}
	if after.Processes < before.Processes || after.Softirq < before.Softirq {
		t.Errorf("time went back from %+v to %+v", before, after)
	}
}
