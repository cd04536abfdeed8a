package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

// hook is a program and its attach point.
type hook struct {
	program *ebpf.Program
	attach  ebpf.AttachType
}

// links are programs attached to a cgroup.
type links []link.Link

// Close detaches the programs.
func (l links) Close() error {
	var errs []error
	for _, one := range l {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

func attach(cgroup *rig.Cgroup, hooks []hook) (io.Closer, error) {
	var attached links
	for _, h := range hooks {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup.Path(), Attach: h.attach, Program: h.program})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach %s: %w", h.program, err), attached.Close())
		}
		attached = append(attached, l)
	}
	return attached, nil
}

// way is a way from the client to the server.
type way struct {
	name   string
	top    *topology.Topology
	listen func(topology.Family) netip.Addr     // the server; nil = its own address
	dial   func(topology.Family) netip.AddrPort // nil = the server
	// attach attaches programs for a run; nil = there are none. As soon as a hook is used in any
	// cgroup, it costs every socket of the machine, so none may stay attached during the runs of
	// other ways.
	attach func() (io.Closer, error)
}

// variant makes a variant of a kind of traffic that uses the way.
func (w *way) variant(what workload, family topology.Family) round.Variant {
	job, connects := what.job, what.connects
	// Both sides share one CPU, so that the time between two operations is the cost of both.
	job.Client = flow.Place{Cgroup: w.top.Cgroup, Netns: w.top.Client.Netns, CPU: flow.On(0)}
	job.Server = flow.Place{Netns: w.top.Servers[0].Netns, CPU: flow.On(0)}
	listen := w.top.Servers[0].Addr
	if w.listen != nil {
		listen = w.listen
	}
	job.Listen = netip.AddrPortFrom(listen(family), serverPort)
	if w.dial != nil {
		job.Dial = w.dial(family)
	}
	return round.Variant{Name: w.name, Run: func(ctx context.Context) (round.Sample, error) {
		sample, err := w.run(ctx, job)
		if err == nil && connects {
			sample.Values[rate] = 1e9 / sample.Values[median]
		}
		return sample, err
	}}
}

func (w *way) run(ctx context.Context, job flow.Job) (_ round.Sample, err error) {
	if w.attach != nil {
		attached, err := w.attach()
		if err != nil {
			return round.Sample{}, err
		}
		defer func() { err = errors.Join(err, attached.Close()) }()
	}
	r, err := flow.Run(ctx, job)
	if err != nil {
		return round.Sample{}, err
	}
	return round.Sample{
		Claimed: r.Claimed, Arrived: r.Arrived, Took: r.Took,
		Values: map[string]float64{median: r.Times.P50, least: r.Times.Min},
	}, nil
}
