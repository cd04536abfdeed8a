// Command control measures the control path on real maps: what one change of endpoints costs with few and with many
// services, what a cold start costs, and how much memory the agent keeps per service. Times are judged as multiples of
// one raw map update measured in the same run, where the goal is such a multiple.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unique"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	output := flag.String("output", "_output/bench/control.json", "where the JSON goes")
	scale := flag.Int("scale", 1, "divide every number of services by this, for a quick look")
	flag.Parse()
	if err := run(os.Stdout, *output, *scale); err != nil {
		fmt.Fprintln(os.Stderr, "bench-control:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, path string, scale int) error {
	fmt.Fprintf(out, "control path on %s, %d CPUs; medians over 5 000 changes\n", kernel(), runtime.NumCPU())
	var rows []result.Row
	var small float64
	for _, services := range []int{1_000, 20_000, 100_000} {
		r, err := change(services / scale)
		if err != nil {
			return fmt.Errorf("one change with %d services: %w", services, err)
		}
		if small == 0 {
			small = r[0].Ratio
		}
		flat := result.Row{
			Row: "change", Case: r[0].Case, Metric: "median ratio over that of the smallest", Value: r[0].Ratio / small, Goal: 1.5,
		}
		flat.Verdict = result.AtMost(flat.Value, flat.Goal)
		rows = append(rows, append(r, flat)...)
	}
	for _, c := range []struct {
		services, endpoints int
		goal                float64 // seconds
	}{{50_000, 1, 50_000 * 12e-6}, {100_000, 10, 4}} {
		r, err := cold(c.services/scale, c.endpoints, c.goal/float64(scale))
		if err != nil {
			return fmt.Errorf("cold load of %d services: %w", c.services, err)
		}
		rows = append(rows, r...)
	}
	r, err := heap(50_000 / scale)
	if err != nil {
		return fmt.Errorf("heap: %w", err)
	}
	rows = append(rows, r)
	return result.Write(out, path, rows)
}

// fleet is a set of objects as a source would have translated them: every string is its own.
type fleet struct {
	services []*model.Service
	slices   []*model.Slice
}

func address(prefix byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{prefix, byte(n >> 16), byte(n >> 8), byte(n)})
}

func makeSlice(i, endpoints, generation int) *model.Slice {
	name := "service-" + strconv.Itoa(i)
	s := &model.Slice{
		Name:    model.Name{Namespace: "namespace-" + strconv.Itoa(i%100), Name: name + "-x7k2p"},
		Service: name, Family: model.IPv4, Weight: 1,
		Ports:     []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}},
		Endpoints: make([]model.Endpoint, endpoints),
	}
	for e := range s.Endpoints {
		s.Endpoints[e] = model.Endpoint{
			Addr:       address(10, i*endpoints+(e+generation)%endpoints),
			Node:       unique.Make("node-" + strconv.Itoa(e)),
			Conditions: model.Ready | model.Serving,
		}
	}
	return s
}

func makeFleet(services, endpoints int) *fleet {
	f := &fleet{}
	for i := range services {
		f.services = append(f.services, &model.Service{
			Name:       model.Name{Namespace: "namespace-" + strconv.Itoa(i%100), Name: "service-" + strconv.Itoa(i)},
			UID:        fmt.Sprintf("%08x-0000-4000-8000-000000000000", i),
			Created:    int64(i),
			ClusterIPs: []netip.Addr{address(11, i)},
			Ports:      []model.Port{{Name: "http", Port: 80, Protocol: model.TCP}},
		})
		f.slices = append(f.slices, makeSlice(i, endpoints, 0))
	}
	return f
}

func (f *fleet) deliver(store *model.Store) {
	store.ReplaceServices(f.services)
	store.ReplaceSlices(f.slices)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(nil)
}

// rig is a Reconciler over real maps that no program reads and nobody pins.
type rig struct {
	store      *model.Store
	maps       *maps.Maps
	tables     *maps.Tables
	barrier    *maps.Barrier
	reconciler *reconcile.Reconciler
}

func newRig(store *model.Store) (*rig, error) {
	r := &rig{store: store}
	sizes, err := maps.MinSizes().AtLeast(reconcile.Estimate(store)).Round()
	if err != nil {
		return nil, err
	}
	if r.maps, err = maps.Create(sizes); err != nil {
		return nil, err
	}
	if r.tables, err = r.maps.Tables(); err != nil {
		return nil, err
	}
	if r.barrier, err = maps.NewBarrier(); err != nil {
		return nil, err
	}
	r.reconciler, err = reconcile.New(reconcile.Config{
		Store: store,
		Tables: &reconcile.Tables{
			Frontends: r.tables.Svcs, Services: r.tables.Services, Slots: r.tables.Slots,
			Backends: r.tables.Backends, Names: r.tables.Names,
		},
		Facts:   lb.Facts{ExternalIPs: lb.ExternalIPsAll},
		Barrier: r.barrier.Wait,
		Grow: func(maps.Sizes) (*reconcile.Tables, error) {
			return nil, fmt.Errorf("the estimate of the sizes was too small")
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	return r, err
}

func (r *rig) close() {
	r.tables.Close()
	r.maps.Close()
	r.barrier.Close()
}

// change measures from the object's arrival in the store to the store of the word that the programs load.
func change(services int) ([]result.Row, error) {
	const rounds, endpoints = 5_000, 3
	store := model.NewStore("node-0")
	makeFleet(services, endpoints).deliver(store)
	r, err := newRig(store)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.reconciler.Settle(); err != nil {
		return nil, err
	}
	words := indexWords(r.tables, services)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.reconciler.Run(ctx) }()

	var took, raw, late []float64
	control := make(chan []float64, 1)
	stop := make(chan struct{})
	go sleeper(stop, control)
	for round := range rounds {
		i := round * 7919 % services
		// One endpoint fewer or one more: the set changes, as in a rollout.
		slice := makeSlice(i, endpoints, 0)
		if round/services%2 == 0 {
			slice.Endpoints = slice.Endpoints[:endpoints-1]
		}
		word := words[i]
		was := atomic.LoadUint64(word)
		start := time.Now()
		store.SetSlice(slice)
		for atomic.LoadUint64(word) == was {
			if time.Since(start) > 5*time.Second {
				return nil, fmt.Errorf("change of service %d did not become visible", i)
			}
			runtime.Gosched()
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/1e3)
		raw = append(raw, rawUpdate(r.tables, round))
		time.Sleep(100 * time.Microsecond) // changes come one at a time, to an agent that sleeps
	}
	close(stop)
	late = <-control
	cancel()
	if err := <-done; err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%d services x %d endpoints", services, endpoints)
	yardstick := quantile(raw, 0.5)
	median := result.Row{
		Row: "change", Case: name, Metric: "us, object to visible, median", Value: quantile(took, 0.5),
		Yardstick: yardstick, Ratio: quantile(took, 0.5) / yardstick, Goal: 40,
	}
	median.Verdict = result.AtMost(median.Ratio, median.Goal)
	tail := result.Row{
		Row: "change", Case: name, Metric: "us, object to visible, p99", Value: quantile(took, 0.99),
		Yardstick: quantile(late, 0.99), Goal: 1000,
	}
	tail.Ratio = tail.Value / tail.Yardstick
	tail.Verdict = result.AtMost(tail.Value, tail.Goal)
	if quantile(late, 0.99) >= 300 {
		tail.Verdict = result.Inconclusive // a thread that only sleeps is as late on this machine
	}
	return []result.Row{median, tail}, nil
}

// indexWords finds the word of every service of a fleet.
func indexWords(t *maps.Tables, services int) []*uint64 {
	words := make([]*uint64, services)
	_ = t.Svcs.Each(func(key maps.SvcKey, row maps.Svc) {
		b := maps.NetipOf(key.Addr).As4()
		words[int(b[1])<<16|int(b[2])<<8|int(b[3])] = &t.Services[row.Service].Words[maps.ScopeAll]
	})
	return words
}

// rawUpdate times one BPF_MAP_UPDATE_ELEM of a row as it is.
func rawUpdate(t *maps.Tables, n int) float64 {
	key := maps.KeyOf(address(11, n%1000), 80, model.TCP)
	row, _, err := t.Svcs.Lookup(key)
	if err != nil {
		return 0
	}
	start := time.Now()
	if err := t.Svcs.Update(key, row); err != nil {
		return 0
	}
	return float64(time.Since(start).Nanoseconds()) / 1e3
}

// sleeper measures by how much a thread that only sleeps is woken late, in microseconds.
func sleeper(stop <-chan struct{}, result chan<- []float64) {
	runtime.LockOSThread()
	var late []float64
	for {
		select {
		case <-stop:
			result <- late
			return
		default:
		}
		const nap = 500 * time.Microsecond
		start := time.Now()
		time.Sleep(nap)
		late = append(late, float64((time.Since(start)-nap).Nanoseconds())/1e3)
	}
}

// cold measures from objects in memory to all maps written.
func cold(services, endpoints int, goal float64) ([]result.Row, error) {
	f := makeFleet(services, endpoints)
	var best, raw float64
	for range 3 {
		store := model.NewStore("node-0")
		runtime.GC()
		start := time.Now()
		f.deliver(store)
		delivered := time.Since(start)
		r, err := newRig(store) // the making of the maps is not what is measured
		if err != nil {
			return nil, err
		}
		start = time.Now()
		if err := r.reconciler.Settle(); err != nil {
			return nil, err
		}
		took := (delivered + time.Since(start)).Seconds()
		if got := r.reconciler.Stats(); got.Frontends != services || got.Backends != services*endpoints {
			return nil, fmt.Errorf("%d frontends and %d backends were written, want %d and %d",
				got.Frontends, got.Backends, services, services*endpoints)
		}
		if best == 0 || took < best {
			best = took
		}
		var updates []float64
		for i := range 2_000 {
			updates = append(updates, rawUpdate(r.tables, i))
		}
		raw = quantile(updates, 0.5)
		r.close()
	}
	name := fmt.Sprintf("%d services x %d endpoints", services, endpoints)
	perService := result.Row{
		Row: "cold load", Case: name, Metric: "us per service", Value: best / float64(services) * 1e6,
		Yardstick: raw, Goal: goal / float64(services) * 1e6,
	}
	perService.Ratio = perService.Value / raw
	perService.Verdict = result.AtMost(perService.Value, perService.Goal)
	whole := result.Row{Row: "cold load", Case: name, Metric: "s, objects to maps", Value: best, Goal: goal}
	whole.Verdict = result.AtMost(whole.Value, whole.Goal)
	return []result.Row{perService, whole}, nil
}

// heap measures what stays live: the objects, the reconciler's state, nothing else.
func heap(services int) (result.Row, error) {
	before := live()
	store := model.NewStore("node-0")
	f := makeFleet(services, 1)
	f.deliver(store)
	r, err := newRig(store)
	if err != nil {
		return result.Row{}, err
	}
	defer r.close()
	if err := r.reconciler.Settle(); err != nil {
		return result.Row{}, err
	}
	f.services, f.slices = nil, nil
	row := result.Row{
		Row: "memory", Case: fmt.Sprintf("%d services x 1 endpoint", services), Metric: "bytes of live heap per service",
		Value: float64(live()-before) / float64(services), Goal: 1500,
	}
	row.Verdict = result.AtMost(row.Value, row.Goal)
	runtime.KeepAlive(r)
	return row, nil
}

func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func quantile(list []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func kernel() string {
	text, err := os.ReadFile("/proc/version")
	if err != nil {
		return "an unknown kernel"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
