package verdict

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	passed   = `<testcase name="[It] a passes" status="passed" time="1.5"></testcase>`
	failed   = `<testcase name="[It] b fails" status="failed" time="2"><failure message="" type="failed">no answer` + "\n" + `at line 7</failure></testcase>`
	left     = `<testcase name="[It] c leaves" status="skipped" time="0"><skipped message="skipped - needs six nodes"></skipped></testcase>`
	unwanted = `<testcase name="[It] d was not asked for" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>`
	setup    = `<testcase name="[SynchronizedBeforeSuite]" status="passed" time="3"></testcase>`
)

func report(cases ...string) string {
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="%d"><testsuite name="suite" tests="%[1]d"><properties>
<property name="SpecialSuiteFailureReason" value=""></property></properties>%s</testsuite></testsuites>`, len(cases), strings.Join(cases, ""))
}

func TestParseJUnit(t *testing.T) {
	a := Spec{Name: "a passes", Result: Pass, Seconds: 1.5}
	b := Spec{Name: "b fails", Result: Fail, Seconds: 2, Why: "no answer\nat line 7"}
	c := Spec{Name: "c leaves", Result: Skip, Why: "needs six nodes"}
	tests := []struct {
		name, report string
		want         Run
	}{
		{"every result", report(setup, passed, failed, left, unwanted),
			Run{Specs: []Spec{a, b, c}, Others: map[string]bool{"d was not asked for": true}}},
		{"no specs", report(setup), Run{Others: map[string]bool{}}},
		{"one suite as the root", `<testsuite tests="1">` + passed + `</testsuite>`, Run{Specs: []Spec{a}, Others: map[string]bool{}}},
		{"failed, then passed", report(strings.Replace(failed, "b fails", "a passes", 1), passed),
			Run{Specs: []Spec{{"a passes", Flaky, 3.5, "no answer\nat line 7"}}, Others: map[string]bool{}}},
		{"passed twice", report(passed, passed), Run{Specs: []Spec{{"a passes", Pass, 3, ""}}, Others: map[string]bool{}}},
		{"a panic", report(`<testcase name="[It] e" status="panicked" time="1"><error message="nil map" type="panicked">goroutine 1</error></testcase>`),
			Run{Specs: []Spec{{"e", Fail, 1, "nil map\ngoroutine 1"}}, Others: map[string]bool{}}},
		{"pending", report(`<testcase name="[It] e" status="pending" time="0"><skipped message="pending"/></testcase>`),
			Run{Others: map[string]bool{"e": true}}},
		{"the set-up failed", report(`<testcase name="[SynchronizedBeforeSuite]" status="failed" time="3"><failure>nodes not ready` + "\n" + `trace</failure></testcase>`),
			Run{Others: map[string]bool{}, Problems: []string{"[SynchronizedBeforeSuite] failed: nodes not ready"}}},
		{"the run was ended", strings.Replace(report(passed), `value=""`, `value="Suite Timeout Elapsed"`, 1),
			Run{Specs: []Spec{a}, Others: map[string]bool{}, Problems: []string{"the run as a whole failed: Suite Timeout Elapsed"}}},
		{"a name of several lines", report(`<testcase name="[It] a &#x9;b&#xA;c" status="passed" time="0"/>`),
			Run{Specs: []Spec{{Name: "a b c", Result: Pass}}, Others: map[string]bool{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run, err := ParseJUnit(strings.NewReader(tt.report))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, run); diff != "" {
				t.Errorf("run (-want +have):\n%s", diff)
			}
		})
	}
}

func TestBrokenJUnit(t *testing.T) {
	bomb := `<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><testsuite>` + strings.Replace(passed, "a passes", "&b;", 1) + `</testsuite>`
	tests := []struct{ name, report, want string }{
		{"nothing", "", "EOF"},
		{"no XML", "panic: runtime error", "EOF"},
		{"cut off", report(passed, failed)[:200], "unexpected EOF"},
		{"something else", `<html><body>504</body></html>`, `it is a "html"`},
		{"two documents", report(passed) + report(failed), "after its end"},
		{"specs are missing", strings.Replace(report(passed), `tests="1"><prop`, `tests="2"><prop`, 1), `announces "2" specs and has 1`},
		{"no name", report(strings.Replace(passed, "a passes", "", 1)), "it has no name"},
		{"no status", report(strings.Replace(passed, `status="passed"`, "", 1)), `status ""`},
		{"unknown status", report(strings.Replace(passed, `"passed"`, `"splendid"`, 1)), `status "splendid"`},
		{"passed and failed", report(strings.Replace(failed, `"failed" time`, `"passed" time`, 1)), `status "passed"`},
		{"failed without a failure", report(strings.Replace(passed, `"passed"`, `"failed"`, 1)), `status "failed"`},
		{"skipped without saying so", report(strings.Replace(passed, `"passed"`, `"skipped"`, 1)), `status "skipped"`},
		{"failed and skipped", report(strings.Replace(failed, "<failure", "<skipped/><failure", 1)), "both failed and was skipped"},
		{"time is no number", report(strings.Replace(passed, "1.5", "soon", 1)), `took "soon" seconds`},
		{"time is before", report(strings.Replace(passed, "1.5", "-1", 1)), `took "-1" seconds`},
		{"time without end", report(strings.Replace(passed, "1.5", "Inf", 1)), `took "Inf" seconds`},
		{"entities", bomb, "invalid character entity"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run, err := ParseJUnit(strings.NewReader(tt.report))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("have %+v and %v, want an error with %q", run, err, tt.want)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	first, err := ParseJUnit(strings.NewReader(report(passed, left, unwanted, strings.Replace(unwanted, "d was", "e was", 1))))
	if err != nil {
		t.Fatal(err)
	}
	second, err := ParseJUnit(strings.NewReader(report(strings.Replace(passed, "a passes", "d was not asked for", 1),
		strings.Replace(unwanted, "d was not asked for", "a passes", 1))))
	if err != nil {
		t.Fatal(err)
	}
	first.Merge(second)
	var have []string
	for _, s := range first.Specs {
		have = append(have, s.Name+": "+string(s.Result))
	}
	if diff := cmp.Diff([]string{"a passes: pass", "c leaves: skip", "d was not asked for: pass"}, have); diff != "" {
		t.Errorf("specs (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"e was not asked for": true}, first.Others); diff != "" {
		t.Errorf("others (-want +have):\n%s", diff)
	}
}

func FuzzParseJUnit(f *testing.F) {
	f.Add(report(setup, passed, failed, left, unwanted))
	f.Add(report(passed)[:100])
	f.Fuzz(func(t *testing.T, text string) {
		run, err := ParseJUnit(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, s := range run.Specs {
			if s.Name == "" || strings.ContainsAny(s.Name, "\t\n") || s.Seconds < 0 || s.Result == "" {
				t.Errorf("spec %+v", s)
			}
		}
	})
}
