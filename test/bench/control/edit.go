package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.io/fairlead/pkg/enforce"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/test/bench/round"
)

const (
	toNew         = "ms, median, to new flows"
	toEstablished = "ms, median, to established flows"
	editPairs     = 3 // of edits in a run: one that denies a flow, and one that accepts it again
	editTimeout   = time.Minute
	// editPoll is the pause between packets. Without one, they would take a core from the agent.
	editPoll = 500 * time.Microsecond
)

// edits is the part of an agent that enforces policies, over real maps, and a program that judges by them.
type edits struct {
	tenants
	maps       *maps.Maps
	pair       *pair
	store      *model.Store
	controller *policies.Controller
	undo       []func() error
}

// startEdits returns once the policies are in force.
func startEdits(t tenants) (_ *edits, err error) {
	e := &edits{tenants: t, store: model.NewStore("node-0")}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.maps, err = maps.Create(maps.Sizes{}); err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.maps.Close)
	if e.pair, err = newPair(e.maps, e.local(client).Addrs[0], e.local(server).Addrs[0]); err != nil {
		return nil, err
	}
	e.undo = append(e.undo, e.pair.Close)
	var rows []maps.Pod
	for i, d := range e.devices() {
		rows = append(rows, maps.Pod{Addrs: d.Addrs, Index: d.Index, MAC: macOf(i), Policy: true})
	}
	if _, err := e.maps.SetPods(rows); err != nil {
		return nil, err
	}
	opened, err := e.maps.OpenEnforceMaps()
	if err != nil {
		return nil, err
	}
	writer, err := enforce.New(opened, false, nil)
	if err != nil {
		return nil, err
	}
	e.undo = append(e.undo, writer.Close)
	e.enforce(writer)
	return e, e.pair.netns.Do(func() error {
		_, err := e.await(time.Now(), true)
		return err
	})
}

func (e *edits) close() error {
	var err error
	for _, undo := range slices.Backward(e.undo) {
		err = errors.Join(err, undo())
	}
	return err
}

// enforce delivers the cluster and has its policies enforced.
func (e *edits) enforce(writer *enforce.Writer) {
	e.deliver(e.store)
	e.store.SetNetworkPolicy(source.NetworkPolicy(e.edited(e.tierOf(client), editedPort)))
	e.controller = policies.New(&policies.Config{
		Store: e.store, Node: "node-0", Mode: "enforce", Quota: policy.DefaultQuota(),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	var pods []*model.PolicyPod
	for n := range e.pods() {
		pods = append(pods, e.pod(n))
	}
	e.controller.ReplacePods(pods)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- e.controller.Run(ctx, &policies.Around{Writer: writer, Devices: e.devices})
	}()
	e.undo = append(e.undo, func() error {
		stop()
		return <-ended
	})
}

// devices are those of the node's pods. Only those of the pair exist.
func (e *edits) devices() []policies.Device {
	var list []policies.Device
	for n := range podsOfNode {
		pod := e.local(n)
		list = append(list, policies.Device{Pod: pod.Name, Index: uint32(1_000_000 + n), Addrs: pod.Addrs})
	}
	list[client].Index, list[server].Index = sender, e.pair.receiver
	return list
}

func (e *edits) String() string {
	if e.policies == 1 {
		return "1 policy"
	}
	return fmt.Sprintf("%d policies", e.policies)
}

// editPorts edits at which port the pod is let in, and editSelector who is. Only the latter changes what
// policies tell addresses apart by.
func (e *edits) editPorts(deny bool) *networkingv1.NetworkPolicy {
	if deny {
		return e.edited(e.tierOf(client), editedPort+1)
	}
	return e.edited(e.tierOf(client), editedPort)
}

func (e *edits) editSelector(deny bool) *networkingv1.NetworkPolicy {
	if deny {
		return e.edited("none", editedPort)
	}
	return e.edited(e.tierOf(client), editedPort)
}

// run returns a function that measures edits, one at a time while the agent sleeps: from the API's object to
// the first packet that is judged by it.
func (e *edits) run(edit func(deny bool) *networkingv1.NetworkPolicy) func(context.Context) (round.Sample, error) {
	return func(context.Context) (sample round.Sample, err error) {
		var fresh, established []float64
		err = e.pair.netns.Do(func() error {
			for range editPairs {
				flow := e.pair.next()
				if err := e.pair.establish(flow); err != nil {
					return err
				}
				for _, deny := range []bool{true, false} {
					took, err := e.one(edit(deny), deny, flow)
					if err != nil {
						return err
					}
					fresh = append(fresh, millis(took.fresh))
					if deny {
						established = append(established, millis(took.established))
					}
				}
			}
			return nil
		})
		n := uint64(2 * editPairs)
		slices.Sort(fresh)
		slices.Sort(established)
		return round.Sample{Claimed: n, Arrived: uint64(len(fresh)), Values: map[string]float64{
			toNew: round.Quantile(fresh, 0.5), toEstablished: round.Quantile(established, 0.5),
		}}, err
	}
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// took is how long it took until an edit was in force for a flow that begins, and for one that had begun.
type took struct{ fresh, established time.Duration }

// one makes an edit and waits for its effect.
func (e *edits) one(object *networkingv1.NetworkPolicy, deny bool, flow int) (took took, err error) {
	start := time.Now()
	e.store.SetNetworkPolicy(source.NetworkPolicy(object))
	if !deny {
		took.fresh, err = e.await(start, true)
		return took, err
	}
	for took.fresh == 0 || took.established == 0 {
		for _, at := range []struct {
			flow int
			took *time.Duration
		}{{e.pair.next(), &took.fresh}, {flow, &took.established}} {
			if *at.took != 0 {
				continue
			}
			accepted, err := e.pair.accepts(at.flow)
			if err != nil {
				return took, err
			}
			if !accepted {
				*at.took = time.Since(start)
			}
		}
		if err := e.pause(start); err != nil {
			return took, err
		}
	}
	return took, nil
}

// await returns how long after start a flow was first accepted that begins, or denied.
func (e *edits) await(start time.Time, accept bool) (time.Duration, error) {
	for {
		accepted, err := e.pair.accepts(e.pair.next())
		if err != nil || accepted == accept {
			return time.Since(start), err
		}
		if err := e.pause(start); err != nil {
			return 0, err
		}
	}
}

func (e *edits) pause(start time.Time) error {
	time.Sleep(editPoll)
	if time.Since(start) > editTimeout {
		return fmt.Errorf("%s: an edit did not become visible in %v: %+v", e, editTimeout, e.controller.Status())
	}
	return nil
}
