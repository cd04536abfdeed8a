package oracle

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// perWalk is the number of consecutive states on one node.
const perWalk = 50

// walk is a sequence of states that both sides go through, each starting from what the previous one
// left.
type walk struct {
	seed, number uint64
}

// failure is a difference and what is needed to reproduce it.
type failure struct {
	walk walk
	step int
	node node
	last *state // as generated
	diff string
}

// run goes through the walk up to the first difference.
func (w walk) run(seen *coverage) *failure {
	g := &generator{Rand: rand.New(rand.NewPCG(w.seed, w.number))}
	on := g.node()
	theirs, mine := newUpstream(on), newOurs(on)
	for step := range perWalk {
		before := g.before
		s := g.next()
		seen.state(on, s, before)
		diff := difference(theirs.apply(s, seen), mine.apply(s))
		seen.close()
		if diff != "" {
			return &failure{walk: w, step: step, node: on, last: s, diff: diff}
		}
	}
	return nil
}

// report describes the difference with as few objects as still show it.
func (f *failure) report() string {
	var out strings.Builder
	fmt.Fprintf(&out, "seed %d, walk %d, step %d: on node %q in zone %q", f.walk.seed, f.walk.number, f.step, f.node.name, f.node.zone)
	s, diff := f.last, f.diff
	if compare(f.node, s) == "" {
		out.WriteString("; only after the states before it")
	} else {
		s = shrink(f.node, s)
		diff = compare(f.node, s)
	}
	fmt.Fprintf(&out, "\n%s\n(-kube-proxy +ours):\n%s", s.text(), diff)
	return out.String()
}

// setting returns a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestChoice compares as many states as STATES says, by default a million. SEED selects other
// states than the default ones.
func TestChoice(t *testing.T) {
	klog.SetLogger(logr.Discard()) // kube-proxy logs everything it ignores
	// Almost nothing of a state outlives it, so collecting garbage every few megabytes took a third
	// of the time.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	walks := (setting(t, "STATES", 1_000_000) + perWalk - 1) / perWalk
	seed := setting(t, "SEED", 1)
	var (
		workers sync.WaitGroup
		next    atomic.Uint64
		failed  atomic.Bool
		mu      sync.Mutex
		seen    = newCoverage()
		first   *failure
	)
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			mine := newCoverage()
			for !failed.Load() {
				number := next.Add(1) - 1
				if number >= walks {
					break
				}
				if f := (walk{seed, number}).run(mine); f != nil {
					failed.Store(true)
					mu.Lock()
					if first == nil || number < first.walk.number {
						first = f
					}
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			seen.add(mine)
		})
	}
	workers.Wait()
	if first != nil {
		t.Fatal(first.report())
	}
	t.Logf("%d states with seed %d; those with\n%s", walks*perWalk, seed, seen)
	for _, class := range seen.missing() {
		t.Errorf("never occurred: %s", class)
	}
}
