package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/bench/node"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// goalAdd is the time allowed for ADD, relative to doing the same by hand.
const goalAdd = 1.5

const (
	attachRow = "ADD"
	attached  = "us, until the pod has its network"
	byHand    = "by hand"
	byPlugin  = "fairlead-cni"
)

// handDevice is the name that byhand gives to the node's end.
const handDevice = "hand0"

// parallel is the number of pods added at a time.
const parallel = 32

// busy is a node whose pods come and go.
type busy struct {
	*node.Node
	binaries string
	added    int // pods added one after another
}

// attaching measures how long pods wait for their network.
func (o *options) attaching(ctx context.Context, report *result.Report) (err error) {
	if !strings.Contains(attachRow, o.only) {
		return nil
	}
	own, err := node.New(o.binaries, "--host-routing="+routings[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	n := &busy{Node: own, binaries: o.binaries}
	p, err := n.NewPod("pod")
	if err != nil {
		return err
	}
	fmt.Fprintf(report.Out(), "%s: ", attachRow)
	series, err := round.Run(ctx, round.Plan{
		Variants: []round.Variant{
			{Name: byPlugin, Run: func(ctx context.Context) (round.Sample, error) { return n.addOnce(ctx, p) }},
			{Name: byHand, Run: func(ctx context.Context) (round.Sample, error) { return n.addByHand(ctx, p) }},
		},
		Rounds: 2 * o.rounds, WarmUp: 2, Out: report.Out(),
	})
	if err != nil {
		return err
	}
	if err := series.Report(report, round.Question{
		Row: attachRow, Case: "one after the other", Metric: attached, Variant: byPlugin, Yardstick: byHand, Goal: goalAdd,
	}); err != nil {
		return err
	}
	return n.addMany(ctx, report, o.operations(500))
}

// addOnce adds a pod and removes it.
func (n *busy) addOnce(ctx context.Context, p *node.Pod) (round.Sample, error) {
	n.added++
	p.ID = fmt.Sprintf("pod%d", n.added)
	took, err := n.Add(ctx, p)
	if err != nil {
		return round.Sample{}, err
	}
	sample, err := sampleOf(p, took)
	return sample, errors.Join(err, n.Del(ctx, p))
}

// addByHand runs a program that makes the same network with all parameters known beforehand, and
// removes it.
func (n *busy) addByHand(ctx context.Context, p *node.Pod) (sample round.Sample, err error) {
	err = n.Do(func() error {
		began := time.Now()
		if text, err := exec.CommandContext(ctx, filepath.Join(n.binaries, "byhand"), p.Path()).CombinedOutput(); err != nil {
			return fmt.Errorf("byhand: %w\n%s", err, text)
		}
		took := time.Since(began)
		if sample, err = sampleOf(p, took); err != nil {
			return err
		}
		link, err := netlink.LinkByName(handDevice)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	return sample, err
}

// sampleOf checks that the pod has its device, an address of each family and a default route.
func sampleOf(p *node.Pod, took time.Duration) (round.Sample, error) {
	sample := round.Sample{Claimed: 1, Took: took, Values: map[string]float64{attached: float64(took.Nanoseconds()) / 1e3}}
	return sample, p.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(link, family)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Gw != nil }) {
				return fmt.Errorf("a pod has no default route: %v", routes)
			}
		}
		sample.Arrived = 1
		return nil
	})
}

// addMany adds and removes the given number of pods, several at a time, and reports how long ADD
// took.
func (n *busy) addMany(ctx context.Context, report *result.Report, count int) error {
	var (
		mu      sync.Mutex
		took    []time.Duration
		errs    []error
		running sync.WaitGroup
	)
	for worker := range parallel {
		p, err := n.NewPod(fmt.Sprintf("worker%d", worker))
		if err != nil {
			return err
		}
		running.Go(func() {
			for i := worker; i < count; i += parallel {
				p.ID = fmt.Sprintf("churn%d", i)
				each, err := n.Add(ctx, p)
				if err == nil {
					err = n.Del(ctx, p)
				}
				mu.Lock()
				took, errs = append(took, each), append(errs, err)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.Sort(took)
	for _, part := range []struct {
		name string
		at   int
	}{{"half of them", len(took) / 2}, {"99 of 100", len(took) * 99 / 100}} {
		report.Add(result.Row{
			Row: attachRow, Case: fmt.Sprintf("%d at a time, %s", parallel, part.name), Metric: attached,
			Value: float64(took[part.at].Nanoseconds()) / 1e3, Verdict: result.Pass,
		})
	}
	return nil
}
