package reconcile

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// BenchmarkCheck checks 100,000 services of three backends each. It reports the processor time of a
// turn, which is how long a change of endpoints may have to wait.
func BenchmarkCheck(b *testing.B) {
	const services = 100_000
	store := model.NewStore("node0")
	var list []*model.Service
	var endpoints []*model.Slice
	for i := range services {
		s := web(netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}).String())
		s.Name.Name, s.Ports[0].NodePort = fmt.Sprint("web-", i), uint16(i%3*(1+i/3%20000))
		slice := webSlice("10.1.0.1", "10.1.0.2", "10.1.0.3")
		slice.Name.Name, slice.Service = s.Name.Name+"-1", s.Name.Name
		list, endpoints = append(list, s), append(endpoints, slice)
	}
	deliver(store, list, endpoints)
	r, err := New(Config{
		Store: store, Barrier: func() error { return nil }, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Tables: NewMemory(maps.Sizes{Svcs: 4 * services, Services: 2 * services, Slots: 8 * services, Backends: 8 * services}),
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := r.Drain(); err != nil {
		b.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var turns []time.Duration
	for b.Loop() {
		r.verifier.begin(nil)
		for r.verifier.current != nil {
			var start time.Duration
			select {
			case rows := <-r.verifier.turns():
				start = threadTime(b)
				r.verifier.turn(rows)
			case rows := <-r.verifier.rangeTurns():
				start = threadTime(b)
				r.verifier.rangeTurn(rows)
			}
			turns = append(turns, threadTime(b)-start)
			if err := r.Pass(); err != nil {
				b.Fatal(err)
			}
			r.finishCheck()
		}
	}
	if stats := r.Stats(); stats.Checks == 0 || stats.Damage != 0 {
		b.Errorf("%+v", stats)
	}
	slices.Sort(turns)
	b.ReportMetric(float64(turns[len(turns)/2].Microseconds()), "us/turn(p50)")
	b.ReportMetric(float64(turns[len(turns)*99/100].Microseconds()), "us/turn(p99)")
	b.ReportMetric(float64(turns[len(turns)-1].Microseconds()), "us/turn(max)")
}

// threadTime returns the processor time used by this thread.
func threadTime(b testing.TB) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		b.Fatal(err)
	}
	return time.Duration(now.Nano())
}
