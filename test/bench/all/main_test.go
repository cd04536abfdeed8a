package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/bench/result"
)

func row(name string, verdict result.Verdict) result.Row {
	return result.Row{Row: name, Case: "c", Metric: "ns", Value: 1, Goal: 2, Verdict: verdict}
}

func save(t *testing.T, folder, name string, rows ...result.Row) {
	t.Helper()
	if err := result.Save(filepath.Join(folder, name+".json"), rows, []result.About{{Benchmark: name}}); err != nil {
		t.Fatal(err)
	}
}

func TestSuite(t *testing.T) {
	broken := errors.New("exit status 2")
	now := time.Unix(0, 0)
	// What each benchmark writes; nil = nothing.
	writes := map[string][]result.Row{
		"a":     {row("a/x", result.Pass), row("a/y", result.Miss)},
		"b":     {row("b/x", result.Inconclusive)},
		"alien": {row("b/x", result.Pass)},
	}
	tests := []struct {
		name  string
		names []string
		want  []string // rows of all.json
		fail  string
		out   string
	}{
		{"two", []string{"a", "b"}, []string{"a/x", "a/y", "b/x"}, "", "all.json: 1 goals met, 1 missed, 1 inconclusive\n"},
		{"one", []string{"b"}, []string{"b/x"}, "", "b: 0 goals met, 0 missed, 1 inconclusive, in 3.0 minutes\n"},
		{"one fails", []string{"broken", "b"}, []string{"b/x"}, "run bench-broken: exit status 2", "broken: FAILED: "},
		{"one writes nothing", []string{"a", "silent"}, []string{"a/x", "a/y"}, "silent.json", "silent: FAILED: "},
		{"another's rows", []string{"a", "alien"}, []string{"a/x", "a/y"}, "of another benchmark", ""},
		{"all fail", []string{"broken"}, nil, "there are none", ""},
		{"no names", nil, nil, "name the benchmarks", ""},
		{"odd names", []string{"all"}, nil, `"all" is not the name`, ""},
		{"names of elsewhere", []string{"../a"}, nil, `"../a" is not the name`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			folder := t.TempDir()
			save(t, folder, "silent", row("silent/old", result.Pass))
			var out strings.Builder
			s := suite{folder: folder, out: &out, now: func() time.Time { now = now.Add(3 * time.Minute); return now }}
			s.run = func(name string) error {
				if name == "broken" {
					return errors.Join(errors.New("run bench-broken: exit status 2"), broken)
				}
				if rows := writes[name]; rows != nil {
					save(t, folder, name, rows...)
				}
				return nil
			}
			err := s.do(tt.names)
			if (tt.fail == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.fail) || !strings.Contains(out.String(), tt.out) {
				t.Errorf("have error %v, want one with %q; output:\n%s", err, tt.fail, &out)
			}
			checkAll(t, folder, tt.want)
		})
	}
}

// checkAll checks the rows of all.json, and that the machine is described.
func checkAll(t *testing.T, folder string, want []string) {
	t.Helper()
	rows, err := result.Load(filepath.Join(folder, "all.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, r.Row)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all.json (-want +got):\n%s", diff)
	}
	about, err := result.LoadAbout(filepath.Join(folder, "all.json"))
	if err != nil || len(rows) > 0 && len(about) == 0 {
		t.Errorf("all.machine.json: have %v and %v", about, err)
	}
}

// Without running anything, existing results are collected and drawn.
func TestCollect(t *testing.T) {
	folder := t.TempDir()
	save(t, folder, "a", row("a/x", result.Pass))
	s := suite{folder: folder, out: new(strings.Builder), now: time.Now}
	if err := s.do([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile(filepath.Join(folder, "a.svg"))
	if err != nil || !strings.Contains(string(picture), "a/x") {
		t.Errorf("have the picture %q and %v", picture, err)
	}
}

func TestRunMake(t *testing.T) {
	if err := runMake(t.Context(), "true", "a"); err != nil {
		t.Error(err)
	}
	if err := runMake(t.Context(), "false", "a"); err == nil || !strings.Contains(err.Error(), "run bench-a: exit status 1") {
		t.Errorf("have error %v", err)
	}
}
