package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/bench/machine"
	"fairlead.io/fairlead/test/bench/result"
)

// rowOf returns a row with the name that the tests use, a value and possibly a ratio.
func rowOf(metric string, value, ratio float64, verdict result.Verdict) result.Row {
	return result.Row{Row: "toy/r", Case: "c", Metric: metric, Value: value, Ratio: ratio, Verdict: verdict}
}

// with returns results of one row with the given uncertainties of ratio and value.
func with(row result.Row, ratioNoise, valueNoise float64) results {
	around := func(noise float64) result.Spread { return result.Spread{Median: 1, Low: 1 - noise, High: 1 + noise} }
	return results{
		rows: []result.Row{row},
		about: []result.About{{Benchmark: "toy", Details: []result.Detail{{
			Row: row.Row, Case: row.Case, Metric: row.Metric, Ratio: around(ratioNoise), Value: around(valueNoise),
		}}}},
	}
}

func TestCompareRow(t *testing.T) {
	const ns, rate = "ns per operation", "req/s"
	tests := []struct {
		name                    string
		metric                  string
		old, new                float64 // values
		oldRatio, newRatio      float64
		oldVerdict, newVerdict  result.Verdict
		ratioNoise, valueNoise  float64
		want                    effect
		regressed, ratioIsTaken bool
	}{
		{name: "the same", metric: ns, old: 100, new: 100, want: same},
		{name: "a bit more", metric: ns, old: 100, new: 104, want: same},
		{name: "a bit less", metric: ns, old: 100, new: 96, want: same},
		{name: "a cost that grew", metric: ns, old: 100, new: 106, want: worse, regressed: true},
		{name: "a cost that shrank", metric: ns, old: 100, new: 94, want: better},
		{name: "a rate that grew", metric: rate, old: 100, new: 106, want: better},
		{name: "a rate that shrank", metric: rate, old: 100, new: 94, want: worse, regressed: true},
		{name: "the ratio decides", metric: ns, old: 100, new: 200, oldRatio: 2, newRatio: 2, want: same, ratioIsTaken: true},
		{name: "a ratio that grew", metric: ns, old: 100, new: 100, oldRatio: 2, newRatio: 3, want: worse, regressed: true, ratioIsTaken: true},
		{name: "only one has a ratio", metric: ns, old: 100, new: 100, newRatio: 3, want: same},
		{name: "within the noise", metric: ns, old: 100, new: 120, valueNoise: 0.15, want: same},
		{name: "beyond the noise", metric: ns, old: 100, new: 122, valueNoise: 0.15, want: worse, regressed: true},
		{name: "the ratio's noise", metric: ns, old: 1, new: 1, oldRatio: 1, newRatio: 1.2, ratioNoise: 0.15, want: same, ratioIsTaken: true},
		{name: "not the value's noise", metric: ns, old: 1, new: 1, oldRatio: 1, newRatio: 1.2, valueNoise: 0.5, want: worse, regressed: true, ratioIsTaken: true},
		{name: "it was inconclusive", metric: ns, old: 100, new: 200, oldVerdict: result.Inconclusive, want: unsure},
		{name: "it is inconclusive", metric: ns, old: 100, new: 200, newVerdict: result.Inconclusive, want: unsure},
		{name: "out of nothing", metric: ns, old: 0, new: 1, want: worse, regressed: true},
		{name: "nothing at all", metric: ns, old: 0, new: 0, want: same},
		{name: "a goal lost", metric: ns, old: 100, new: 110, newVerdict: result.Miss, want: worse, regressed: true},
		{name: "a goal lost by chance", metric: ns, old: 100, new: 101, newVerdict: result.Miss, want: same},
	}
	for _, tt := range tests {
		for _, verdict := range []*result.Verdict{&tt.oldVerdict, &tt.newVerdict} {
			if *verdict == "" {
				*verdict = result.Pass
			}
		}
		old := with(rowOf(tt.metric, tt.old, tt.oldRatio, tt.oldVerdict), tt.ratioNoise, tt.valueNoise)
		new := with(rowOf(tt.metric, tt.new, tt.newRatio, tt.newVerdict), tt.ratioNoise, tt.valueNoise)
		changes := compare(old, new)
		if len(changes) != 1 || changes[0].effect != tt.want || changes[0].ratio != tt.ratioIsTaken {
			t.Errorf("%s: have %+v, want %q", tt.name, changes, tt.want)
		}
		if got := regressions(changes) == 1; got != tt.regressed {
			t.Errorf("%s: a regression: have %v, want %v", tt.name, got, tt.regressed)
		}
	}
}

// Without rounds, the uncertainty of a time is unknown. Counts are certain.
func TestUnknownNoise(t *testing.T) {
	for metric, want := range map[string]effect{"us per service": same, "req/s": same, "bytes of live heap": worse, "instructions": worse} {
		old, new := rowOf(metric, 100, 0, result.Pass), rowOf(metric, 120, 0, result.Pass)
		changes := compare(results{rows: []result.Row{old}}, results{rows: []result.Row{new}})
		if changes[0].effect != want {
			t.Errorf("%s, 20 %% more: have %q, want %q", metric, changes[0].effect, want)
		}
	}
}

// save writes results as a benchmark does.
func save(t *testing.T, path, cpu string, rows ...result.Row) {
	t.Helper()
	about := []result.About{{Benchmark: "toy", Machine: machine.Machine{CPU: cpu, Cores: 1, NUMANodes: 1, Kernel: "6.18.0"}}}
	if err := result.Save(path, rows, about); err != nil {
		t.Fatal(err)
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	old, new, elsewhere := filepath.Join(dir, "old"), filepath.Join(dir, "new"), filepath.Join(dir, "elsewhere.json")
	row := func(name, metric string, value, ratio float64, verdict result.Verdict) result.Row {
		return result.Row{Row: "toy/" + name, Case: "c", Metric: metric, Value: value, Ratio: ratio, Verdict: verdict}
	}
	before := []result.Row{
		row("connect", "ns", 120, 1.2, result.Pass), row("rate", "req/s", 5000, 0, result.Pass), row("gone", "ns", 1, 0, result.Pass),
	}
	save(t, filepath.Join(old, "all.json"), "Abacus", before...)
	save(t, filepath.Join(old, "toy.json"), "Abacus", row("ignored", "ns", 1, 0, result.Pass))
	// Without an all.json, compare reads the files of the benchmarks.
	save(t, filepath.Join(new, "toy.json"), "Abacus",
		row("connect", "ns", 180, 1.8, result.Miss), row("rate", "req/s", 6000, 0, result.Pass), row("fresh", "ns", 7, 0.5, result.Pass))
	save(t, elsewhere, "Slide rule", before...)

	tests := []struct {
		name      string
		arguments []string
		code      int
		out       string
		fail      string
	}{
		{
			name: "folders", arguments: []string{old, new}, out: `ROW          CASE  METRIC  OLD   NEW   CHANGE   NOISE  VERDICT       EFFECT
toy/connect  c     ns      1.2x  1.8x  +50.0 %  28 %   pass -> miss  WORSE
toy/rate     c     req/s   5000  6000  +20.0 %  28 %   pass          
toy/fresh    c     ns      -     0.5x  -        -      pass          new
toy/gone     c     ns      1     -     -        -      pass          MISSING
1 worse, 0 better, 1 the same, 0 unsure, 1 new, 1 missing; 1 goals lost
`,
		},
		{name: "strict", arguments: []string{"-strict", old, new}, code: exitWorse, out: "1 worse, 0 better"},
		{name: "strict, nothing worse", arguments: []string{"-strict", old, old}, out: "0 worse, 0 better, 3 the same"},
		{
			name: "another machine", arguments: []string{old, elsewhere},
			out: "the machines differ; trust only ratios:\n  old: Abacus, 1 core without SMT, 1 NUMA node, 0 MiB, governor unknown, Linux 6.18.0, clang unknown\n  new: Slide rule,",
		},
		{name: "one argument", arguments: []string{old}, code: 2, fail: "give two files"},
		{name: "no file", arguments: []string{old, dir + "/none"}, code: 1, fail: "find results"},
		{name: "an empty folder", arguments: []string{t.TempDir(), new}, code: 1, fail: "make bench writes some"},
		{name: "no such option", arguments: []string{"-x"}, code: 2, fail: "not defined"},
	}
	for _, tt := range tests {
		var out strings.Builder
		code, err := run(tt.arguments, &out)
		if code != tt.code || (err != nil) != (tt.fail != "") || err != nil && !strings.Contains(err.Error(), tt.fail) {
			t.Errorf("%s: have %d and %v, want %d and %q", tt.name, code, err, tt.code, tt.fail)
		}
		if tt.name == "folders" {
			if diff := cmp.Diff(tt.out, out.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		} else if !strings.Contains(out.String(), tt.out) {
			t.Errorf("%s: have\n%swant\n%s", tt.name, &out, tt.out)
		}
	}
}

func TestLoadBroken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.json")
	if err := os.WriteFile(path, []byte("[{}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run([]string{dir, dir}, io.Discard); err == nil || !strings.Contains(err.Error(), `no "row"`) {
		t.Errorf("have error %v", err)
	}
	if err := errors.Join(os.WriteFile(path, []byte("[]"), 0o600), os.WriteFile(result.AboutPath(path), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := run([]string{path, path}, io.Discard); err == nil || !strings.Contains(err.Error(), "read the origin") {
		t.Errorf("have error %v", err)
	}
}
