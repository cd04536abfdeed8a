package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

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
		drops := func(packets uint64) []reasons.Drop {
			return []reasons.Drop{{Hook: "tc", Reason: "ttl", Stops: true, Packets: packets, Bytes: 60 * packets}}
		}
		readings := uint64(0)
		err := inv.watchDrops(ctx, ticks, drops(0), func() ([]reasons.Drop, error) {
			if readings++; readings == 2 {
				cancel()
			}
			return drops(readings), nil
		})
		cancel()
		if err != nil || strings.Count(out.String(), want) < 2 {
			t.Errorf("%s: %v, twice %q is not in:\n%s", format, err, want, out.String())
		}
	}
}
