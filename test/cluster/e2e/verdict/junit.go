// Package verdict judges a run of upstream's end-to-end tests: it compares the result of every spec
// with the expected one and reports the differences. It reads reports and lists and runs nothing.
package verdict

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Result is the actual or expected result of a spec.
type Result string

// The possible results. Flaky is a spec that had two different results in one run; a list cannot
// expect it.
const (
	Pass  Result = "pass"
	Fail  Result = "fail"
	Skip  Result = "skip" // the spec found that the cluster does not suit it
	Flaky Result = "flaky"
)

// Spec is a spec that ran.
type Spec struct {
	Name    string
	Result  Result
	Seconds float64
	Why     string // the message of a failure or a skip
}

// Run is the contents of the reports of a run.
type Run struct {
	Specs    []Spec          // the specs that ran, sorted by name
	Others   map[string]bool // names of specs of the suite that were not selected
	Problems []string        // with the run as a whole
}

// document is a JUnit report whose root element is either a single suite or a list of suites.
type document struct {
	XMLName xml.Name
	suite
	Suites []suite `xml:"testsuite"`
}

type suite struct {
	Tests      string     `xml:"tests,attr"`
	Properties []property `xml:"properties>property"`
	Cases      []testCase `xml:"testcase"`
}

type property struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type testCase struct {
	Name    string   `xml:"name,attr"`
	Status  string   `xml:"status,attr"`
	Time    string   `xml:"time,attr"`
	Skipped *outcome `xml:"skipped"`
	Failure *outcome `xml:"failure"`
	Error   *outcome `xml:"error"`
}

type outcome struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// ParseJUnit reads the report written by the test framework. Anything that is not clearly a result
// is an error, since a lenient reader would let a broken run pass.
func ParseJUnit(from io.Reader) (*Run, error) {
	decoder := xml.NewDecoder(from)
	var doc document
	if err := decoder.Decode(&doc); err != nil {
		return nil, fmt.Errorf("read JUnit report: %w", err)
	}
	if err := expectEnd(decoder); err != nil {
		return nil, fmt.Errorf("read JUnit report: %w", err)
	}
	suites := doc.Suites
	switch doc.XMLName.Local {
	case "testsuites":
	case "testsuite":
		suites = []suite{doc.suite}
	default:
		return nil, fmt.Errorf("read JUnit report: it is a %q", doc.XMLName.Local)
	}
	run := &Run{Others: map[string]bool{}}
	for _, s := range suites {
		if err := run.addSuite(s); err != nil {
			return nil, fmt.Errorf("read JUnit report: %w", err)
		}
	}
	run.mergeRepeats()
	return run, nil
}

func expectEnd(decoder *xml.Decoder) error {
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if text, ok := token.(xml.CharData); err != nil || !ok || strings.TrimSpace(string(text)) != "" {
			return errors.New("there is something after its end")
		}
	}
}

func (r *Run) addSuite(s suite) error {
	if s.Tests != "" && s.Tests != strconv.Itoa(len(s.Cases)) {
		return fmt.Errorf("it announces %q specs and has %d", s.Tests, len(s.Cases))
	}
	for _, p := range s.Properties {
		if p.Name == "SpecialSuiteFailureReason" && p.Value != "" {
			r.Problems = append(r.Problems, "the run as a whole failed: "+p.Value)
		}
	}
	for _, c := range s.Cases {
		if err := r.addCase(c); err != nil {
			return fmt.Errorf("spec %q: %w", c.Name, err)
		}
	}
	return nil
}

func (r *Run) addCase(c testCase) error {
	name, isSpec := strings.CutPrefix(c.Name, "[It] ")
	name = oneLine(name)
	spec, selected, err := c.read()
	switch spec.Name = name; {
	case err != nil:
		return err
	case name == "":
		return errors.New("it has no name")
	case isSpec && !selected:
		r.Others[name] = true
	case isSpec:
		r.Specs = append(r.Specs, spec)
	case spec.Result == Fail:
		r.Problems = append(r.Problems, name+" failed: "+firstLine(spec.Why))
	}
	return nil
}

// read returns the result of a case, and whether the case was selected at all.
func (c testCase) read() (spec Spec, selected bool, err error) {
	if spec.Seconds, err = strconv.ParseFloat(cmp.Or(c.Time, "0"), 64); err != nil || spec.Seconds < 0 || math.IsNaN(spec.Seconds) || math.IsInf(spec.Seconds, 0) {
		return spec, false, fmt.Errorf("it took %q seconds", c.Time)
	}
	bad := cmp.Or(c.Failure, c.Error)
	if bad != nil && c.Skipped != nil {
		return spec, false, errors.New("it both failed and was skipped")
	}
	switch c.Status {
	case "passed":
		if bad == nil && c.Skipped == nil {
			spec.Result = Pass
			return spec, true, nil
		}
	case "failed", "timedout", "panicked", "interrupted", "aborted":
		if bad != nil {
			spec.Result, spec.Why = Fail, strings.TrimSpace(bad.Message+"\n"+bad.Text)
			return spec, true, nil
		}
	case "pending":
		return spec, false, nil
	case "skipped":
		if c.Skipped != nil {
			// A skip without a reason was not the spec's decision: the spec was not selected.
			spec.Result, spec.Why = Skip, strings.TrimPrefix(strings.TrimPrefix(c.Skipped.Message, "skipped"), " - ")
			return spec, spec.Why != "", nil
		}
	}
	return spec, false, fmt.Errorf("its status %q is not what the rest of it says", c.Status)
}

// mergeRepeats merges several results of one spec.
func (r *Run) mergeRepeats() {
	specs := map[string]Spec{}
	for _, next := range r.Specs {
		have, again := specs[next.Name]
		if again {
			next.Seconds += have.Seconds
			if have.Result != next.Result {
				next.Result, next.Why = Flaky, strings.TrimSpace(have.Why+"\n"+next.Why)
			}
		}
		specs[next.Name] = next
	}
	r.Specs = slices.SortedFunc(maps.Values(specs), func(a, b Spec) int { return strings.Compare(a.Name, b.Name) })
	for name := range specs {
		delete(r.Others, name)
	}
}

// Merge adds the report of another part of the same run.
func (r *Run) Merge(part *Run) {
	r.Specs = append(r.Specs, part.Specs...)
	r.Problems = append(r.Problems, part.Problems...)
	maps.Copy(r.Others, part.Others)
	r.mergeRepeats()
}

// oneLine replaces runs of white space so that a name fits into one column of a table.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// Failed reports whether the run had any failure.
func (r *Run) Failed() bool {
	return len(r.Problems) > 0 || slices.ContainsFunc(r.Specs, func(s Spec) bool { return s.Result == Fail || s.Result == Flaky })
}
