package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, funcs())) }

func TestParse(t *testing.T) {
	for args, fails := range map[string]string{
		"": "", "-here -kernels=": "", "-kernels=": "no kernel", "-rounds=3": "too few", "-window=0s": "too short", "more": "unexpected argument",
	} {
		_, err := parse(strings.Fields(args))
		if (fails == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("%q: have error %v, want %q", args, err, fails)
		}
	}
}

func TestTimes(t *testing.T) {
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(100-i)*time.Millisecond)
	}
	if have, want := timesOf(all), (times{Asked: 100, P50: 51, P95: 96, P99: 100}); have != want {
		t.Errorf("have %+v, want %+v", have, want)
	}
	if have := timesOf(nil); have != (times{}) {
		t.Errorf("of no times: %+v", have)
	}
}

// A load sends requests, which are answered, and streams, whose bytes arrive; both are counted.
func TestLoad(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	s, err := newPlainNodeAndSink()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, l := range []load{
		{Streams: 2, Askers: 3, WarmUp: 100 * time.Millisecond, Window: 200 * time.Millisecond}, {Streams: 1, Window: 200 * time.Millisecond},
		{Askers: 4, Size: 1024, Window: 200 * time.Millisecond},
	} {
		sample, err := s.run(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if sample.Claimed == 0 || sample.Arrived < sample.Claimed || (sample.Values[rate] > 0) != (l.Streams > 0) || sample.Took < l.Window {
			t.Errorf("%+v: %+v", l, sample)
		}
		if (sample.Values[cost] > 0) == (l.Askers > 0) {
			t.Errorf("%+v: %+v", l, sample.Values)
		}
		if l.Askers > 0 && (sample.Values[p50] <= 0 || sample.Values[p99] < sample.Values[p95] || sample.Values[p95] < sample.Values[p50]) {
			t.Errorf("%+v: %+v", l, sample.Values)
		}
	}
}

// Rows taken over from a machine keep all their values, and name the machine. A picture shows them.
func TestTakeOver(t *testing.T) {
	dir := t.TempDir()
	inside, err := result.Begin(result.Config{Benchmark: "bandwidth", Path: filepath.Join(dir, "inside.json"), Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{most: share*trialBits/1e6 - 1}
	b.addRows(inside, []result.Row{{Metric: "Mbit/s", Value: 40, Goal: 45, Verdict: result.Miss}})
	inside.Add(result.Row{Row: "other", Case: "all", Metric: "ms", Value: 1, Verdict: result.Pass})
	if err := inside.Finish(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "outside.json")
	outside, err := result.Begin(result.Config{Benchmark: "bandwidth", Path: path, Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{"Linux 6.1", "Linux 7.2"} {
		if err := takeOver(outside, filepath.Join(dir, "inside.json"), where); err != nil {
			t.Fatal(err)
		}
	}
	if err := finish(outside, path); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile(filepath.Join(dir, "outside.svg"))
	if err != nil || !strings.Contains(string(picture), "bandwidth/a trial") || !strings.Contains(string(picture), "Linux 7.2, 50 Mbit/s") {
		t.Errorf("the picture is %s, %v", picture, err)
	}
	rows, err := result.Load(path)
	if err != nil || len(rows) != 4 {
		t.Fatalf("%+v, %v", rows, err)
	}
	want := result.Row{
		Row: "bandwidth/a trial", Case: "Linux 7.2, 50 Mbit/s for ten seconds", Metric: "Mbit/s", Value: 40, Goal: 45, Verdict: result.Inconclusive,
	}
	if rows[2] != want {
		t.Errorf("have %+v, want %+v", rows[2], want)
	}
	about, err := os.ReadFile(result.AboutPath(path))
	if err != nil {
		t.Fatal(err)
	}
	var list []result.About
	if err := json.Unmarshal(about, &list); err != nil || len(list) != 1 || len(list[0].Details) != 2 || !strings.Contains(list[0].Details[1].Why, "199 Mbit/s") {
		t.Errorf("%s, %v", about, err)
	}
}
