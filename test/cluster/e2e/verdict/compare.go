package verdict

import (
	"fmt"
	"regexp"
)

// Compared is a spec that ran, together with its expected result.
type Compared struct {
	Spec
	Expect Result
	Reason string // for the expectation
	News   string // how it differs from the expectation, or ""
}

// Verdict is the judgment on a run.
type Verdict struct {
	Specs    []Compared
	Problems []string // any one makes the run bad
}

// Compare compares a run with the rows of the list that apply to its cluster. The focus is the regular expression that
// selected the specs.
func Compare(run *Run, list *List, focus *regexp.Regexp) *Verdict {
	v := &Verdict{Problems: append([]string(nil), run.Problems...)}
	ran := map[string]bool{}
	for _, spec := range run.Specs {
		ran[spec.Name] = true
		row := list.Find(spec.Name)
		j := Compared{Spec: spec, Expect: row.Expect, Reason: row.Reason, News: news(spec, row)}
		v.Specs = append(v.Specs, j)
		if j.News == "" {
			continue
		}
		problem := j.News + ": " + spec.Name
		if why := firstLine(spec.Why); why != "" {
			problem += ": " + why
		}
		v.Problems = append(v.Problems, problem)
	}
	if len(run.Specs) == 0 {
		v.Problems = append(v.Problems, "no spec ran: nothing in the suite has the focus, or the run ended early")
	}
	for _, row := range list.rows {
		if problem := absent(row, list, run, ran, focus); problem != "" {
			v.Problems = append(v.Problems, problem)
		}
	}
	return v
}

// news describes how a result differs from the expectation, or returns "".
func news(spec Spec, row Row) string {
	switch {
	case row.Scope == Never:
		return "it ran although it never should"
	case spec.Result == row.Expect:
		return ""
	case spec.Result == Pass:
		return "unexpected pass (the list gives a reason why it should not: is that gone?)"
	case spec.Result == Skip:
		return "unexpected skip"
	case spec.Result == Flaky:
		return "passed and failed in one run"
	default:
		return "new failure"
	}
}

// absent reports why a row has no result: upstream has renamed the spec, or the spec should have
// run and did not.
func absent(row Row, list *List, run *Run, ran map[string]bool, focus *regexp.Regexp) string {
	known, should := false, false
	for _, names := range []map[string]bool{ran, run.Others} {
		for name := range names {
			// A row yields to more specific rows, and is obsolete if they cover all of its specs.
			best := list.Find(name)
			if !row.matches(name) || best.Spec != row.Spec || best.Prefix != row.Prefix {
				continue
			}
			known = true
			if best.line == row.line && row.Scope != Never && focus.MatchString(suiteName+name) {
				should = true
				if ran[name] {
					return ""
				}
			}
		}
	}
	switch {
	case !known:
		return fmt.Sprintf("line %d of the list: the suite has no spec %q; has it another name now?", row.line, row.Spec)
	case should:
		return fmt.Sprintf("did not run: %s (line %d of the list)", row.Spec, row.line)
	default:
		return ""
	}
}

// Good reports whether every result was as expected.
func (v *Verdict) Good() bool { return len(v.Problems) == 0 }

// Counts returns the number of specs with each result.
func (v *Verdict) Counts() map[Result]int {
	counts := map[Result]int{}
	for _, s := range v.Specs {
		counts[s.Result]++
	}
	return counts
}
