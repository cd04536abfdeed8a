package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/bench/result"
)

// programs are the programs whose runs are counted.
var programs = []string{
	bpf.SockmapProgSockmapForget, bpf.SockmapProgSockmapRead, bpf.SockmapProgSockmapMessage,
}

// cost is the kernel's statistics of a program.
type cost struct {
	runs uint64
	took time.Duration
}

// costsSoFar returns the cost of our programs so far. Other agents may run programs of the same
// name: ours use our map.
func (s *twoNodesTwoPods) costsSoFar() (map[string]cost, error) {
	paths, err := filepath.Glob(filepath.Join(sockmap.Dir(s.bpffs), "*", bpf.SockmapMapPairs))
	if err != nil || len(paths) != 1 {
		return nil, fmt.Errorf("find our maps: %v, %w", paths, err)
	}
	ours, err := idOf(paths[0])
	if err != nil {
		return nil, err
	}
	found := map[string]cost{}
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, unix.ENOENT) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("list programs: %w", err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("open program %d: %w", id, err)
		}
		info, err := p.Info()
		var maps []ebpf.MapID
		if err == nil {
			maps, _ = info.MapIDs()
		}
		var stats *ebpf.ProgramStats
		if err == nil {
			stats, err = p.Stats()
		}
		p.Close()
		if err != nil {
			return nil, fmt.Errorf("ask about program %d: %w", id, err)
		}
		if !slices.Contains(maps, ours) || !slices.Contains(programs, info.Name) {
			continue
		}
		have := found[info.Name]
		found[info.Name] = cost{have.runs + stats.RunCount, have.took + stats.Runtime}
	}
}

// costs measures what the programs take of requests, streams and visits. This includes the kernel's
// own counting, some tens of nanoseconds per run.
func (o *options) costs(ctx context.Context, report *result.Report, s *twoNodesTwoPods, p *endpoints) error {
	const row = "programs"
	if !o.wants(row, "") {
		return nil
	}
	defer context.AfterFunc(ctx, p.stop)()
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return fmt.Errorf("count the runs of programs: %w", err)
	}
	defer stats.Close()
	same := cores()[0]
	for _, one := range []struct {
		name string
		each int
		do   func() error
	}{
		{"64 B requests past TCP", o.effortOf(20_000), s.talking(p, on, same, func(t *talk) error { return second(requests(t, job{64, o.effortOf(20_000)})) })},
		{"64 B requests in the map by TCP", o.effortOf(20_000), s.talking(p, held, same, func(t *talk) error { return second(requests(t, job{64, o.effortOf(20_000)})) })},
		{"64 B of a stream", o.effortOf(100_000), s.talking(p, on, same, func(t *talk) error { return second(streams(t, job{64, o.effortOf(100_000)})) })},
		{"visits", o.effortOf(10_000), func() error { return second(s.visits(p, on, same, job{1, o.effortOf(10_000)})) }},
		{"visits of who takes no part", o.effortOf(10_000), func() error { return second(s.visits(p, off, same, job{1, o.effortOf(10_000)})) }},
		{"64 B requests of who takes no part", o.effortOf(20_000), s.talking(p, off, same, func(t *talk) error { return second(requests(t, job{64, o.effortOf(20_000)})) })},
	} {
		before, err := s.costsSoFar()
		if err != nil {
			return err
		}
		if err := one.do(); err != nil {
			return fmt.Errorf("%s, %s: %w", row, one.name, err)
		}
		after, err := s.costsSoFar()
		if err != nil {
			return err
		}
		for name, is := range after {
			if runs := is.runs - before[name].runs; runs > 0 {
				what := one.name + ", " + name
				report.Add(
					result.Row{Row: row, Case: what, Metric: "ns, a run", Value: float64(is.took-before[name].took) / float64(runs), Verdict: result.Pass},
					result.Row{Row: row, Case: what, Metric: "runs, each", Value: float64(runs) / float64(one.each), Verdict: result.Pass},
				)
			}
		}
	}
	return nil
}

// leaving measures how long sockets stay in the map after a conversation has become a stream
// without pauses.
func (o *options) leaving(ctx context.Context, report *result.Report, s *twoNodesTwoPods, p *endpoints) error {
	const row = "stream after a conversation, until it is out of the map"
	defer context.AfterFunc(ctx, p.stop)()
	for _, size := range []int{64, 64 << 10} {
		what := fmt.Sprintf("%d B", size)
		if !o.wants(row, what) {
			continue
		}
		var took []float64
		for range max(o.effortOf(20)/2, 3) {
			t, err := s.connect(p, on, cores()[0], epoll)
			if err == nil {
				err = t.converse(min(size, chat))
			}
			if err != nil {
				return err
			}
			// Far more messages than are needed to leave the map: half a second or so.
			count := min(600_000, (1<<30)/size)
			one := order{Count: count, Size: size, Way: epoll}
			pour, sink := one, one
			pour.Do, sink.Do = "pour", "sink"
			began := time.Now()
			if err := errors.Join(p.server.send(sink), p.client.send(pour)); err != nil {
				return err
			}
			if err := t.until("out of the map", func(p sockmap.Pair) bool { return p.Inside == 0 }); err != nil {
				return err
			}
			took = append(took, float64(time.Since(began))/1e6)
			if err := errors.Join(p.client.hear(&reply{}), p.server.hear(&reply{}), t.close()); err != nil {
				return err
			}
		}
		middle, most := quantiles(took)
		report.Add(
			result.Row{Row: row, Case: what, Metric: "ms, median", Value: middle, Verdict: result.Pass},
			result.Row{Row: row, Case: what, Metric: "ms, at most", Value: most, Verdict: result.Pass},
		)
	}
	return nil
}

func idOf(path string) (ebpf.MapID, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return id, nil
}

func second[T any](_ T, err error) error { return err }

// talking returns a function that opens a connection, uses it and closes it.
func (s *twoNodesTwoPods) talking(p *endpoints, m mode, c cpus, f func(*talk) error) func() error {
	return func() error {
		t, err := s.connect(p, m, c, epoll)
		if err == nil {
			err = f(t)
		}
		if err != nil {
			return err
		}
		return t.close()
	}
}
