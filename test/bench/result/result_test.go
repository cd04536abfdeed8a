package result

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestUnit(t *testing.T) {
	tests := []struct {
		metric, unit string
		more         bool
	}{
		{"us, object to visible, median", "us", false},
		{"ns per operation", "ns", false},
		{"bytes of live heap per service", "bytes", false},
		{"req/s, one connection", "req/s", true},
		{"Gbit/s", "Gbit/s", true},
		{"Mpps", "Mpps", true},
		{"median ratio over that of the smallest", "", false},
		{"instructions", "instructions", false},
	}
	for _, tt := range tests {
		if got := Unit(tt.metric); got != tt.unit {
			t.Errorf("unit of %q: have %q, want %q", tt.metric, got, tt.unit)
		}
		if got := MoreIsBetter(tt.metric); got != tt.more {
			t.Errorf("more is better for %q: have %v, want %v", tt.metric, got, tt.more)
		}
	}
}

func TestGoalFigure(t *testing.T) {
	tests := []struct {
		figure, goal  float64
		most, atLeast Verdict
	}{{1, 2, Pass, Miss}, {2, 2, Pass, Pass}, {3, 2, Miss, Pass}, {math.NaN(), 2, Miss, Miss}}
	for _, tt := range tests {
		if got := AtMost(tt.figure, tt.goal); got != tt.most {
			t.Errorf("at most %v: have %v of %v, want %v", tt.goal, got, tt.figure, tt.most)
		}
		if got := AtLeast(tt.figure, tt.goal); got != tt.atLeast {
			t.Errorf("at least %v: have %v of %v, want %v", tt.goal, got, tt.figure, tt.atLeast)
		}
	}
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 1.0016: "1.002", 0.08: "0.08", 12.3456: "12.35", 99.96: "99.96", 123.4: "123.4", 1.5e9: "1500000000", -2.5: "-2.5",
		0.12345: "0.123", 0.0012345: "0.00123", 9.9999: "10", 1234.5: "1234",
	} {
		if got := Figure(v); got != want {
			t.Errorf("figure of %v: have %s, want %s", v, got, want)
		}
	}
}

// thisMachine returns a machine that runs nothing else.
func thisMachine() fstest.MapFS {
	return fstest.MapFS{
		"proc/cpuinfo":              {Data: []byte("processor : 0\nmodel name : Abacus\n")},
		"proc/sys/kernel/osrelease": {Data: []byte("6.18.0\n")},
		"proc/loadavg":              {Data: []byte("0.50 0.4 0.3 1/99 1234\n")},
		"proc/stat":                 {Data: []byte("cpu 1 2 3 4 5 6 7 8\n")},
	}
}

// toyTable is the printed table.
const toyTable = `toy on Abacus, 1 core without SMT, 1 NUMA node, 0 MiB, governor unknown, Linux 6.18.0, clang unknown
ROW      CASE       METRIC  VALUE  YARDSTICK  RATIO  GOAL  VERDICT
memory   1 service  bytes   1400   -          -      1500  pass
connect  IPv4       ns      120    100        1.2    1.1   inconclusive
load 0.50 before, 1.25 after; 25.0 % of the CPU time that was wanted was stolen
inconclusive: connect, IPv4: ns: the yardstick drifted by 50 %
`

// toyRows is the written file: every row has every key, even if the figure is zero.
const toyRows = `[
  {
    "row": "toy/memory",
    "case": "1 service",
    "metric": "bytes",
    "value": 1400,
    "yardstick": 0,
    "ratio": 0,
    "goal": 1500,
    "verdict": "pass"
  },
  {
    "row": "toy/connect",
    "case": "IPv4",
    "metric": "ns",
    "value": 120,
    "yardstick": 100,
    "ratio": 1.2,
    "goal": 1.1,
    "verdict": "inconclusive"
  }
]
`

func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "toy.json")
	var out strings.Builder
	root := thisMachine()
	report, err := Begin(Config{Benchmark: "toy", Path: path, Out: &out, Root: root, Tree: fstest.MapFS{}})
	if err != nil {
		t.Fatal(err)
	}
	report.Add(Row{Row: "memory", Case: "1 service", Metric: "bytes", Value: 1400, Goal: 1500, Verdict: Pass})
	report.AddMeasured(
		Row{Row: "connect", Case: "IPv4", Metric: "ns", Value: 120, Yardstick: 100, Ratio: 1.2, Goal: 1.1, Verdict: Inconclusive},
		Detail{Variant: "ours", Yardstick: "direct", Drift: 0.5, Why: "the yardstick drifted by 50 %"},
	)
	root["proc/loadavg"] = &fstest.MapFile{Data: []byte("1.25 0.4 0.3 1/99 1234\n")}
	root["proc/stat"] = &fstest.MapFile{Data: []byte("cpu 1 2 33 4 5 6 7 18\n")}
	if err := report.Finish(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(toyTable, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(toyRows, string(text)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	loaded, err := Load(path)
	if err != nil || len(loaded) != 2 {
		t.Fatalf("loaded %v and %v", loaded, err)
	}
	about, err := LoadAbout(path)
	if err != nil || len(about) != 1 {
		t.Fatalf("loaded %v and %v", about, err)
	}
	a := about[0]
	if a.Machine.CPU != "Abacus" || a.Before.One != 0.5 || a.After.One != 1.25 || a.Details[0].Key() != loaded[1].Key() {
		t.Errorf("about: have %+v", a)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 2 {
		t.Errorf("files in the folder: %v (%v), want the two files", left, err)
	}
}

func TestReportRefuses(t *testing.T) {
	good := Row{Row: "a", Case: "b", Metric: "ns", Verdict: Pass}
	tests := []struct {
		name string
		rows []Row
		want string
	}{
		{"nothing", nil, "measured nothing"},
		{"the same twice", []Row{good, good}, "two rows of toy/a, b: ns"},
		{"no case", []Row{{Row: "a", Metric: "ns", Verdict: Pass}}, "no row, case or metric"},
		{"no verdict", []Row{{Row: "a", Case: "b", Metric: "ns"}}, `"" is no verdict`},
		{"no figure", []Row{{Row: "a", Case: "b", Metric: "ns", Ratio: math.Inf(1), Verdict: Pass}}, "+Inf is no figure"},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "toy.json")
		report, err := Begin(Config{Benchmark: "toy", Path: path, Out: new(strings.Builder), Root: thisMachine()})
		if err != nil {
			t.Fatal(err)
		}
		report.Add(tt.rows...)
		if err := report.Finish(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: have error %v, want one with %q", tt.name, err, tt.want)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
			t.Errorf("%s: files were written: %v", tt.name, left)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	good := map[string]any{
		"row": "a", "case": "b", "metric": "ns", "value": 1, "yardstick": 0, "ratio": 0, "goal": 2, "verdict": "pass",
	}
	changed := func(key string, value any) map[string]any {
		row := map[string]any{}
		for k, v := range good {
			row[k] = v
		}
		if row[key] = value; value == nil {
			delete(row, key)
		}
		return row
	}
	tests := []struct {
		name string
		rows any
		want string // "" = loads
	}{
		{"a good one", []any{good}, ""},
		{"none", []any{}, ""},
		{"a missing key", []any{changed("yardstick", nil)}, `no "yardstick"`},
		{"another key", []any{changed("comment", "x")}, "comment"},
		{"another verdict", []any{changed("verdict", "fail")}, "no verdict"},
		{"no list", good, "cannot unmarshal"},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "rows.json")
		text, err := json.Marshal(tt.rows)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = Load(path)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: have error %v, want one with %q", tt.name, err, tt.want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: have error %v", err)
	}
}

// A failed write leaves the old file.
func TestWriteFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	if err := WriteFile(path, strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := WriteFile(path, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("have error %v, want %v", err, broken)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "old" {
		t.Errorf("have %q and %v, want the old content", text, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("files in the folder: %v (%v), want the one file", left, err)
	}
}

func TestAboutMissing(t *testing.T) {
	if about, err := LoadAbout(filepath.Join(t.TempDir(), "a.json")); about != nil || err != nil {
		t.Errorf("have %v and %v, want nothing", about, err)
	}
}
