package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

const (
	// editGoal is the time in milliseconds that half of the edits may take with as many policies as editJudged,
	// or fewer.
	editGoal, editJudged = 100, 1000
	// rawPolicyUpdates is so many that the machine shows in them as it does in an edit.
	rawPolicyUpdates = 100_000
)

// measureEdits measures edits of a policy with each number of policies, beside raw updates of a map of policies.
func measureEdits(ctx context.Context, report *result.Report, namespaces int, counts []int) (err error) {
	var all []*edits
	defer func() {
		for _, e := range all {
			err = errors.Join(err, e.close())
		}
	}()
	var variants []round.Variant
	for _, n := range counts {
		e, err := startEdits(tenants{namespaces: namespaces, policies: n})
		if err != nil {
			return fmt.Errorf("%d policies: %w", n, err)
		}
		all = append(all, e)
		for name, edit := range kindsOfEdits(e) {
			variants = append(variants, round.Variant{Name: e.String() + ", " + name, Run: e.run(edit)})
		}
	}
	raw := rawPolicies(all[0].maps)
	series, err := round.Run(ctx, round.Plan{
		Variants: append(variants, raw), Rounds: round.MinRounds, WarmUp: 1, Limit: 5 * time.Minute, Out: report.Out(),
	})
	if err != nil {
		return err
	}
	for _, e := range all {
		goal := 0.0
		if e.policies <= editJudged {
			goal = editGoal
		}
		for name := range kindsOfEdits(e) {
			for _, metric := range []string{toNew, toEstablished} {
				if err := series.Report(report, round.Question{
					Row: "policy, " + name, Case: e.String(), Metric: metric, Variant: e.String() + ", " + name, Yardstick: raw.Name,
					Goal: goal, OnValue: true,
				}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// kindsOfEdits returns how a policy is edited, by the name of the kind.
func kindsOfEdits(e *edits) func(yield func(string, func(bool) *networkingv1.NetworkPolicy) bool) {
	return func(yield func(string, func(bool) *networkingv1.NetworkPolicy) bool) {
		_ = yield("edit of a port", e.editPorts) && yield("edit of a selector", e.editSelector)
	}
}

// rawPolicies is the yardstick: BPF_MAP_UPDATE_ELEMs of a row of a map of policies, which no address has.
func rawPolicies(m *maps.Maps) round.Variant {
	return round.Variant{Name: "raw map update", Run: func(context.Context) (round.Sample, error) {
		key, row := maps.AddrOf(address(12, 0)), [2]uint32{}
		start := time.Now()
		for range rawPolicyUpdates {
			if err := m.PolicyPeers.Put(key, row); err != nil {
				return round.Sample{}, fmt.Errorf("update a row for the yardstick: %w", err)
			}
		}
		each := millis(time.Since(start)) / rawPolicyUpdates
		return round.Sample{Claimed: rawPolicyUpdates, Arrived: rawPolicyUpdates, Values: map[string]float64{toNew: each, toEstablished: each}},
			m.PolicyPeers.Delete(key)
	}}
}
