package verdict

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// WriteTSV writes a line for each spec that ran.
func (v *Verdict) WriteTSV(to io.Writer) error {
	var text strings.Builder
	text.WriteString("spec\tresult\tseconds\texpected\tnote\n")
	for _, s := range v.Specs {
		note := s.Reason
		if s.News != "" {
			note = s.News
		}
		if s.Result == Skip && note == "" {
			note = firstLine(s.Why)
		}
		fmt.Fprintf(&text, "%s\t%s\t%.1f\t%s\t%s\n", s.Name, s.Result, s.Seconds, s.Expect, oneLine(note))
	}
	if _, err := io.WriteString(to, text.String()); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string      `xml:"name,attr"`
	Class   string      `xml:"classname,attr"`
	Status  string      `xml:"status,attr"`
	Time    string      `xml:"time,attr"`
	Skipped *junitNote  `xml:"skipped,omitempty"`
	Failure *junitNote  `xml:"failure,omitempty"`
	Expect  *junitExtra `xml:"properties>property,omitempty"`
}

type junitNote struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type junitExtra struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

// WriteJUnit writes one report for all parts of the run, without the thousands of specs that were
// not selected. The report gives the actual results; the expected result is a property of each
// case.
func (v *Verdict) WriteJUnit(to io.Writer) error {
	report := junitSuite{Name: strings.TrimSpace(suiteName), Tests: len(v.Specs)}
	for _, s := range v.Specs {
		c := junitCase{
			Name: "[It] " + s.Name, Class: report.Name, Status: "passed", Time: fmt.Sprintf("%.3f", s.Seconds),
			Expect: &junitExtra{"expected", string(s.Expect)},
		}
		switch s.Result {
		case Skip:
			c.Status, c.Skipped = "skipped", &junitNote{Message: "skipped - " + printable(s.Why)}
			report.Skipped++
		case Fail, Flaky:
			c.Status, c.Failure = "failed", &junitNote{Message: printable(firstLine(s.Why)), Text: printable(s.Why)}
			report.Failures++
		}
		report.Cases = append(report.Cases, c)
	}
	text, err := xml.MarshalIndent(report, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(to, "%s%s\n", xml.Header, text)
	}
	if err != nil {
		return fmt.Errorf("write JUnit report: %w", err)
	}
	return nil
}

// printable replaces characters that terminals interpret: a spec may print what a pod sent.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsGraphic(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}
