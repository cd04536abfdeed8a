package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/reasons"
)

func TestDropsWithoutMaps(t *testing.T) {
	got := fairlead(t, append(nowhere(t), "drops")...)
	if got.code != exitError || !strings.Contains(got.stderr, "no fairlead maps under") {
		t.Errorf("exit %d, %s", got.code, got.stderr)
	}
}

func TestDropsWatch(t *testing.T) {
	for format, want := range map[string]string{formatTable: "tc    ttl     stopped", formatJSON: `"reason": "ttl"`} {
		ctx, cancel := context.WithCancel(t.Context())
		ticks := make(chan time.Time, 2)
		ticks <- time.Time{}
		ticks <- time.Time{}
		var out bytes.Buffer
		inv := &invocation{env: &env{Stdout: &out}, format: format}
		drops := func(packets uint64) dropReading {
			return dropReading{drops: []reasons.Drop{{Hook: "tc", Reason: "ttl", Stops: true, Packets: packets, Bytes: 60 * packets}}}
		}
		readings := uint64(0)
		err := inv.watchDrops(ctx, ticks, drops(0), func() (dropReading, error) {
			if readings++; readings == 2 {
				cancel()
			}
			return drops(readings), nil
		}, func(context.Context) []policies.RuleName {
			t.Error("no rule denies anything, and its name is asked for")
			return nil
		})
		cancel()
		if err != nil || strings.Count(out.String(), want) < 2 {
			t.Errorf("%s: %v, twice %q is not in:\n%s", format, err, want, out.String())
		}
	}
}

// What policies deny is shown with the rule, as it is called now: an agent may come or go meanwhile.
func TestDropsWatchNamesRules(t *testing.T) {
	for format, want := range map[string][2]string{
		formatTable: {"2        ingress    networkpolicy shop/web, ingress: no rule accepts it", "6        ingress    rule 7"},
		formatJSON:  {`"policy": "networkpolicy shop/web, ingress: no rule accepts it"`, `"rule": 7`},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ticks := make(chan time.Time, 4)
		for range 4 {
			ticks <- time.Time{}
		}
		counts := []uint64{2, 2, 6, 6} // packets at each tick: nothing is denied at the second and the last
		var out bytes.Buffer
		inv, readings, asked := &invocation{env: &env{Stdout: &out}, format: format}, 0, 0
		reading := func(packets uint64) dropReading {
			return dropReading{
				drops:   []reasons.Drop{{Hook: "pod", Reason: reasons.Policy, Stops: true, Packets: packets}},
				denials: []reasons.Denial{{Rule: 7, Direction: "ingress", Packets: packets}, {Rule: 9, Direction: "egress", Packets: 50}},
			}
		}
		err := inv.watchDrops(ctx, ticks, reading(1), func() (dropReading, error) {
			if readings++; readings == len(counts) {
				cancel()
			}
			return reading(counts[readings-1]), nil
		}, func(context.Context) []policies.RuleName {
			if asked++; asked > 1 {
				return nil // the agent has gone
			}
			return samplePolicies{}.Names()
		})
		cancel()
		text := out.String()
		if err != nil || asked != 2 || !strings.Contains(text, want[0]) || !strings.Contains(text, want[1]) || strings.Contains(text, "rule 9") || strings.Contains(text, `"rule": 9`) {
			t.Errorf("%s: %v, asked %d times:\n%s", format, err, asked, text)
		}
	}
}
