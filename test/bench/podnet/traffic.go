package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/kubeproxy"
	"fairlead.io/fairlead/test/bench/node"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/rig"
)

// What is measured in every run. Both ends are on one CPU, so a figure is the cost of both ends and
// of the kernel between them.
const (
	median = "ns, median"
	least  = "ns, least"
	stream = "Gbit/s"
	work   = "Gbit/s, by the CPU time of both ends" // includes the kernel's work for them; other processes do not disturb it
)

// The cost allowed for parts of requests beyond loopback, relative to the stack's, and the
// throughput required of streams.
const (
	goalPods    = 0.40
	goalOutside = 0.65
	goalRules   = 0.30
	goalStream  = 1
	// The cost allowed for whole requests between pods that policies are about, relative to others.
	goalPolicy = 1.03
)

const (
	serverPort = 8080
	streamSize = 64 << 10
)

const loopback = "loopback"

// oneNodeTwoPods is a node in one of its forms, with two pods.
type oneNodeTwoPods struct {
	*node.Node
	name string
	pods []*node.Pod
}

// The forms of nodes, by the value of --host-routing.
var routings = []string{"bpf", "stack"}

func withRules(routing string) string { return routing + ", rules" }

// isolated is the name of the node whose policies are about both pods, and accept what is measured.
const isolated = "isolated"

// setups makes the nodes: one for each form, and if kube-proxy is available, each again with its
// rules.
func (o *options) setups(ctx context.Context, report *result.Report) (_ map[string]*oneNodeTwoPods, closer func() error, err error) {
	var setups []*oneNodeTwoPods
	closer = func() error {
		var errs []error
		for _, s := range setups {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closer())
		}
	}()
	program, version, err := kubeproxy.Find()
	if err != nil {
		return nil, nil, err
	}
	if program == nil && o.services > 0 {
		fmt.Fprintf(report.Out(), "NOT MEASURED: kube-proxy %s is not built; \"go run ./test/cluster build\" does that\n", version)
	}
	found := map[string]*oneNodeTwoPods{}
	add := func(routing, name string) (*oneNodeTwoPods, error) {
		n, err := node.New(o.binaries, "--host-routing="+routing)
		if err != nil {
			return nil, err
		}
		s := &oneNodeTwoPods{Node: n, name: name}
		setups = append(setups, s)
		found[name] = s
		s.pods, err = n.AddPods(ctx, 2)
		return s, err
	}
	for _, ruled := range []bool{false, true} {
		if ruled && (program == nil || o.services == 0) {
			continue
		}
		for _, routing := range routings {
			name := routing
			if ruled {
				name = withRules(routing)
			}
			s, err := add(routing, name)
			if err == nil && ruled {
				err = s.writeRules(ctx, program, o.services)
			}
			if err != nil {
				return nil, nil, err
			}
		}
	}
	s, err := add(routings[0], isolated)
	if err == nil {
		err = s.isolate()
	}
	if err != nil {
		return nil, nil, err
	}
	return found, closer, nil
}

// row is a kind of traffic to be measured on the setups.
type row struct {
	name      string
	job       flow.Job
	to        func(*oneNodeTwoPods) (*rig.Netns, netip.Addr)
	ours      string // a setup
	yardstick string // another one
	goal      float64
}

func toPod(s *oneNodeTwoPods) (*rig.Netns, netip.Addr)     { return s.pods[1].Netns, s.pods[1].Addr }
func toOutside(s *oneNodeTwoPods) (*rig.Netns, netip.Addr) { return s.Outside, node.Outside }

func (o *options) rows() []row {
	ask := flow.Job{Kind: flow.RequestResponse, Operations: o.operations(8000), WarmUp: o.operations(800)}
	pour := flow.Job{Kind: flow.Stream, Operations: o.operations(20_000), WarmUp: o.operations(1000), Size: streamSize}
	ours, stack := routings[0], routings[1]
	return []row{
		{"request, to a pod of the node", ask, toPod, ours, stack, goalPods},
		{"request, to the outside", ask, toOutside, ours, stack, goalOutside},
		{"request, to a pod of the node, with rules", ask, toPod, withRules(ours), withRules(stack), goalRules},
		{"stream, to a pod of the node", pour, toPod, ours, stack, goalStream},
		{"stream, to the outside", pour, toOutside, ours, stack, goalStream},
		{"policy, request, to a pod of the node", ask, toPod, isolated, ours, goalPolicy},
		{"policy, stream, to a pod of the node", pour, toPod, isolated, ours, goalStream},
	}
}

func (o *options) operations(usual int) int { return max(int(o.effort*float64(usual)), 64) }

// traffic measures each kind of traffic.
func (o *options) traffic(ctx context.Context, report *result.Report) (err error) {
	var wanted []row
	for _, r := range o.rows() {
		if strings.Contains(r.name, o.only) {
			wanted = append(wanted, r)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	setups, closer, err := o.setups(ctx, report)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer()) }()
	for _, r := range wanted {
		if err := o.measure(ctx, report, r, setups); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// measure runs a kind of traffic on all setups in turns.
func (o *options) measure(ctx context.Context, report *result.Report, r row, setups map[string]*oneNodeTwoPods) error {
	if setups[r.ours] == nil {
		return nil // already reported
	}
	variants := []round.Variant{r.variant(setups[r.ours]), r.variant(setups[r.yardstick])}
	if r.job.Kind == flow.RequestResponse {
		variants = append(variants, r.loopback(setups[r.yardstick].pods[0]))
	}
	fmt.Fprintf(report.Out(), "%s: ", r.name)
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.rounds, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return err
	}
	questions := r.questions()
	for i := range questions {
		q := &questions[i]
		q.Row, q.Case, q.Variant, q.Yardstick = r.name, r.ours+" beside "+r.yardstick+q.Case, r.ours, r.yardstick
	}
	return series.Report(report, questions...)
}

// questions asks about streams as they are, and about the cost of requests beyond loopback. The
// metric "least" is that of the one request that nothing disturbed.
func (r *row) questions() []round.Question {
	if r.job.Kind == flow.Stream {
		return []round.Question{{Metric: work, Goal: r.goal}, {Metric: stream, Goal: r.goal}}
	}
	if r.ours == isolated {
		return []round.Question{{Case: ", in all", Metric: median, Goal: r.goal}, {Case: ", in all", Metric: least, Goal: r.goal}}
	}
	return []round.Question{
		{Case: ", above " + loopback, Metric: median, Above: loopback, Goal: r.goal},
		{Case: ", above " + loopback, Metric: least, Above: loopback, Goal: r.goal},
		{Case: ", in all", Metric: median},
	}
}

// variant is the traffic from a pod of a setup.
func (r *row) variant(s *oneNodeTwoPods) round.Variant {
	ns, addr := r.to(s)
	return r.between(s.name, s.pods[0].Netns, ns, addr)
}

// loopback is the same traffic inside a pod.
func (r *row) loopback(p *node.Pod) round.Variant {
	return r.between(loopback, p.Netns, p.Netns, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

func (r *row) between(name string, client, server *rig.Netns, at netip.Addr) round.Variant {
	job := r.job
	job.Client, job.Server = flow.Place{Netns: client, CPU: flow.On(0)}, flow.Place{Netns: server, CPU: flow.On(0)}
	job.Listen = netip.AddrPortFrom(at, serverPort)
	return round.Variant{Name: name, Run: func(ctx context.Context) (round.Sample, error) {
		result, err := flow.Run(ctx, job)
		if err != nil {
			return round.Sample{}, err
		}
		sample := round.Sample{Claimed: result.Claimed, Arrived: result.Arrived, Took: result.Took, Values: map[string]float64{}}
		if job.Kind == flow.Stream {
			sample.Values[stream] = result.Bandwidth(job.Size) / 1e9
			sample.Values[work] = float64(job.Size) * 8 / (result.Client.PerOperation() + result.Server.PerOperation())
		} else {
			sample.Values[median], sample.Values[least] = result.Times.P50, result.Times.Min
		}
		return sample, nil
	}}
}
