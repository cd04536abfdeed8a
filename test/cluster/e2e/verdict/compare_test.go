package verdict

import (
	"bytes"
	"encoding/xml"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// expected parses a list from rows whose columns are separated by " | ".
func expected(t *testing.T, rows ...string) *List {
	t.Helper()
	text := "# a list\n\n" + header + "\n" + strings.ReplaceAll(strings.Join(rows, "\n"), " | ", "\t")
	list, err := ParseList(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCompare(t *testing.T) {
	list := expected(t,
		"smoke | pass | any | net basic",
		"full | fail | any | net udp* | nothing balances UDP",
		"full | pass | any | net udp once",
		"full | skip | any | net zones | three nodes",
		"never | - | any | net policy * | not ours",
	)
	others := map[string]bool{"net policy a": true, "net b": true}
	good := []Spec{{"net basic", Pass, 1, ""}, {"net udp more", Fail, 1, "no answer"}, {"net udp once", Pass, 1, ""}, {"net zones", Skip, 0, "few"}}
	with := func(changes ...Spec) []Spec {
		specs := append([]Spec(nil), good...)
	next:
		for _, c := range changes {
			for i := range specs {
				if specs[i].Name == c.Name {
					specs[i] = c
					continue next
				}
			}
			specs = append(specs, c)
		}
		return specs
	}
	tests := []struct {
		name  string
		focus string
		run   Run
		want  []string
	}{
		{"as expected", "", Run{Specs: good}, nil},
		{"one that is not listed passes", "", Run{Specs: with(Spec{"net c", Pass, 1, ""})}, nil},
		{"one that is not listed fails", "", Run{Specs: with(Spec{"net c", Fail, 1, "timeout\nmore"})}, []string{"new failure: net c: timeout"}},
		{"one that is not listed skips", "", Run{Specs: with(Spec{"net c", Skip, 0, "no cloud"})}, []string{"unexpected skip: net c: no cloud"}},
		{"a listed one fails", "", Run{Specs: with(Spec{"net basic", Fail, 1, "x"})}, []string{"new failure: net basic: x"}},
		{"one of several that should fail passes", "", Run{Specs: with(Spec{"net udp more", Pass, 1, ""})},
			[]string{"unexpected pass (the list gives a reason why it should not: is that gone?): net udp more"}},
		{"one that should skip passes", "", Run{Specs: with(Spec{"net zones", Pass, 1, ""})},
			[]string{"unexpected pass (the list gives a reason why it should not: is that gone?): net zones"}},
		{"one that should skip fails", "", Run{Specs: with(Spec{"net zones", Fail, 1, "x"})}, []string{"new failure: net zones: x"}},
		{"one that should fail skips", "", Run{Specs: with(Spec{"net udp more", Skip, 0, "x"})}, []string{"unexpected skip: net udp more: x"}},
		{"one that should fail is flaky", "", Run{Specs: with(Spec{"net udp more", Flaky, 1, "x"})}, []string{"passed and failed in one run: net udp more: x"}},
		{"one that should pass is flaky", "", Run{Specs: with(Spec{"net basic", Flaky, 1, "x"})}, []string{"passed and failed in one run: net basic: x"}},
		{"one that never should runs", "", Run{Specs: with(Spec{"net policy a", Pass, 1, ""})}, []string{"it ran although it never should: net policy a"}},
		{"a listed one did not run", "", Run{Specs: good[1:], Others: map[string]bool{"net basic": true}}, []string{"did not run: net basic (line 4 of the list)"}},
		{"a listed one has another name", "", Run{Specs: with()[1:], Others: map[string]bool{"net basics": true}},
			[]string{`line 4 of the list: the suite has no spec "net basic"; has it another name now?`}},
		{"all of a beginning are gone", "", Run{Specs: []Spec{good[0], good[2], good[3]}},
			[]string{`line 5 of the list: the suite has no spec "net udp"; has it another name now?`}},
		{"those with a beginning did not run", "", Run{Specs: []Spec{good[0], good[2], good[3]}, Others: map[string]bool{"net udp more": true}},
			[]string{"did not run: net udp (line 5 of the list)"}},
		{"outside of the focus", "basic$", Run{Specs: good[:1], Others: map[string]bool{"net udp more": true, "net udp once": true, "net zones": true}}, nil},
		{"the focus begins with the suite", "^Kubernetes e2e suite net (b.*|zones)$",
			Run{Specs: good[:1], Others: map[string]bool{"net udp more": true, "net udp once": true, "net zones": true}}, []string{"did not run: net zones (line 7 of the list)"}},
		{"nothing ran", "", Run{Others: map[string]bool{"net basic": true, "net udp more": true, "net udp once": true, "net zones": true}}, []string{
			"no spec ran: nothing in the suite has the focus, or the run ended early",
			"did not run: net basic (line 4 of the list)", "did not run: net udp (line 5 of the list)",
			"did not run: net udp once (line 6 of the list)", "did not run: net zones (line 7 of the list)",
		}},
		{"the run as a whole failed", "", Run{Specs: good, Problems: []string{"timeout"}}, []string{"timeout"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run := Run{Specs: tt.run.Specs, Others: map[string]bool{}, Problems: tt.run.Problems}
			for _, names := range []map[string]bool{others, tt.run.Others} {
				for name := range names {
					run.Others[name] = true
				}
			}
			v := Compare(&run, list, regexp.MustCompile(tt.focus))
			if diff := cmp.Diff(tt.want, v.Problems); diff != "" {
				t.Errorf("problems (-want +have):\n%s", diff)
			}
			if v.Good() != (len(tt.want) == 0) {
				t.Errorf("good: %v", v.Good())
			}
		})
	}
}

// An empty run must not pass for a good one.
func TestEmptyRunIsNotGood(t *testing.T) {
	if v := Compare(&Run{}, expected(t, "never | - | any | x | y"), regexp.MustCompile("")); v.Good() {
		t.Error("a run without specs is judged good")
	}
}

func TestWriteResults(t *testing.T) {
	list := expected(t, "full | fail | any | b fails | a reason")
	run, err := ParseJUnit(strings.NewReader(report(setup, passed, failed, left, unwanted)))
	if err != nil {
		t.Fatal(err)
	}
	v := Compare(run, list, regexp.MustCompile(""))
	var table, junit bytes.Buffer
	if err := v.WriteTSV(&table); err != nil {
		t.Fatal(err)
	}
	want := "spec\tresult\tseconds\texpected\tnote\n" +
		"a passes\tpass\t1.5\tpass\t\nb fails\tfail\t2.0\tfail\ta reason\nc leaves\tskip\t0.0\tpass\tunexpected skip\n"
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Errorf("table (-want +have):\n%s", diff)
	}
	if err := v.WriteJUnit(&junit); err != nil {
		t.Fatal(err)
	}
	again, err := ParseJUnit(&junit)
	if err != nil {
		t.Fatal(err)
	}
	run.Others = map[string]bool{}
	run.Specs[1].Why = "no answer\n" + run.Specs[1].Why // the attribute and the text
	if diff := cmp.Diff(run, again); diff != "" {
		t.Errorf("contents of the written report (-want +have):\n%s", diff)
	}
}

func TestWrittenReportIsXML(t *testing.T) {
	v := &Verdict{Specs: []Compared{{Spec: Spec{Name: "<a> & \"b\"", Result: Fail, Why: "\x1b[31m]]> \x00 \xff"}}}}
	var junit bytes.Buffer
	if err := v.WriteJUnit(&junit); err != nil {
		t.Fatal(err)
	}
	for _, b := range []byte("\x1b\x00\xff") {
		if bytes.IndexByte(junit.Bytes(), b) >= 0 {
			t.Errorf("%#x came through: %q", b, junit.String())
		}
	}
	if err := xml.Unmarshal(junit.Bytes(), new(document)); err != nil {
		t.Error(err)
	}
}
