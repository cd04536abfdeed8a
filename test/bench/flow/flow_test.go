package flow

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, Funcs())) }

// jobOf returns a job between the ends of a topology.
func jobOf(top *topology.Topology, family topology.Family) Job {
	return Job{
		Client: Place{Cgroup: top.Cgroup, Netns: top.Client.Netns}, Server: Place{Netns: top.Servers[0].Netns},
		Listen: netip.AddrPortFrom(top.Servers[0].Addr(family), 0),
	}
}

func kinds() map[string]Job {
	return map[string]Job{
		"request and response":          {Kind: RequestResponse, Operations: 2000, WarmUp: 100},
		"of some size":                  {Kind: RequestResponse, Operations: 200, Size: 70_000},
		"in parallel":                   {Kind: RequestResponse, Operations: 2001, WarmUp: 11, Parallel: 4, Size: 100},
		"connect":                       {Kind: Connect, Operations: 500, WarmUp: 10},
		"connect in parallel":           {Kind: Connect, Operations: 600, WarmUp: 10, Parallel: 3},
		"stream":                        {Kind: Stream, Operations: 500, WarmUp: 10, Size: 65536},
		"streams":                       {Kind: Stream, Operations: 1000, WarmUp: 10, Size: 16384, Parallel: 4},
		"datagram":                      {Kind: Datagram, Operations: 1000, WarmUp: 10, Size: 1400},
		"datagram that names its way":   {Kind: Datagram, Operations: 1000, Size: 1, Unconnected: true},
		"send":                          {Kind: Send, Operations: 3000, WarmUp: 64, Size: 1},
		"send, and name the way always": {Kind: Send, Operations: 3000, Size: 1000, Unconnected: true},
		"associate":                     {Kind: Associate, Operations: 1000, WarmUp: 64},
	}
}

func TestKinds(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, topology.NewDirect, topology.Knobs{})
	for name, job := range kinds() {
		for _, family := range []topology.Family{topology.IPv4, topology.IPv6} {
			t.Run(name+" over "+family.String(), func(t *testing.T) {
				where := jobOf(top, family)
				job.Client, job.Server, job.Listen = where.Client, where.Server, where.Listen
				result, err := Run(t.Context(), job)
				if err != nil {
					t.Fatal(err)
				}
				check(t, job, result)
			})
		}
	}
}

// check fails if a result contradicts itself or the job.
func check(t *testing.T, job Job, r Result) {
	t.Helper()
	if r.Claimed < uint64(job.Operations) || r.Claimed > uint64(job.Operations)+batch || r.Arrived != r.Claimed {
		t.Errorf("%d operations claimed and %d arrived, want %d", r.Claimed, r.Arrived, job.Operations)
	}
	if r.Took <= 0 || r.Client.PerOperation() <= 0 || r.Server.PerOperation() <= 0 || r.Bandwidth(1) <= 0 {
		t.Errorf("some cost is zero: %+v", r)
	}
	times := r.Times
	if job.Kind == Stream {
		if times != (Times{}) {
			t.Errorf("a stream has times of operations: %+v", times)
		}
		return
	}
	if times.Min <= 0 || times.Min > times.P50 || times.P50 > times.P90 || times.P90 > times.P99 ||
		times.P99 > times.P999 || times.P999 > times.Max || times.Mean < times.Min || times.Mean > times.Max {
		t.Errorf("the quantiles contradict each other: %+v", times)
	}
	// The total time covers every operation, and operations of one connection never overlap.
	if whole := float64(r.Took); whole*float64(max(job.Parallel, 1)) < times.Mean*float64(r.Claimed)*0.99 {
		t.Errorf("%d operations of %v ns took %v", r.Claimed, times.Mean, r.Took)
	}
}

func TestPlaces(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, func(topology.Knobs) (*topology.Topology, error) { return topology.NewLoopback() }, topology.Knobs{})
	job := jobOf(top, topology.IPv4)
	job.Kind, job.Operations, job.Client.CPU, job.Server.CPU = RequestResponse, 500, On(0), On(0)
	result, err := Run(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	check(t, job, result)
	job.Client.CPU = On(1000)
	if _, err := Run(t.Context(), job); err == nil || !strings.Contains(err.Error(), "pin to CPU 1000") {
		t.Errorf("on a CPU that does not exist: %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, topology.NewDirect, topology.Knobs{})
	nobody := netip.AddrPortFrom(top.Servers[0].Addr(topology.IPv4), 9)
	for want, job := range map[string]Job{
		"connection refused":       {Kind: RequestResponse},
		"do connect: connection r": {Kind: Connect},
		"refused":                  {Kind: Datagram},
		"a datagram got lost":      {Kind: Send, Unconnected: true},
	} {
		where := jobOf(top, topology.IPv4)
		job.Client, job.Server, job.Listen, job.Dial, job.Operations = where.Client, where.Server, where.Listen, nobody, 10
		if result, err := Run(t.Context(), job); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", job.Kind, result, err)
		}
	}
}

// A server that the client does not reach counts nothing, and the result shows it.
func TestOtherServer(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, topology.NewDirect, topology.Knobs{})
	where := jobOf(top, topology.IPv4)
	_, other, err := Job{Kind: RequestResponse, Operations: 1, Listen: where.Listen}.complete()
	if err != nil {
		t.Fatal(err)
	}
	other.Address = where.Listen
	server, address, err := startServer(t.Context(), where.Server, other)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	where.Kind, where.Operations, where.Dial = RequestResponse, 100, address
	result, err := Run(t.Context(), where)
	if err == nil || !strings.Contains(err.Error(), "the server got 0") || result.Arrived != 0 || result.Claimed != 100 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestCanceled(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, topology.NewDirect, topology.Knobs{})
	reason := errors.New("the reason")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, reason)
	defer cancel()
	job := jobOf(top, topology.IPv4)
	job.Kind, job.Operations = RequestResponse, 1<<30
	if _, err := Run(ctx, job); !errors.Is(err, reason) {
		t.Errorf("have error %v", err)
	}
}

func TestRefusedJobs(t *testing.T) {
	any4 := netip.MustParseAddrPort("127.0.0.1:0")
	for want, job := range map[string]Job{
		`no kind ""`:          {Operations: 1, Listen: any4},
		"where the server":    {Kind: Connect, Operations: 1},
		"0 operations":        {Kind: Connect, Listen: any4},
		"a size of -1":        {Kind: Connect, Operations: 1, Size: -1, Listen: any4},
		"a size of 1401":      {Kind: Send, Operations: 1, Size: 1401, Listen: any4},
		"UDP runs alone":      {Kind: Send, Operations: 1, Parallel: 2, Listen: any4},
		"connect is always c": {Kind: Connect, Operations: 1, Unconnected: true, Listen: any4},
	} {
		if _, err := Run(t.Context(), job); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
