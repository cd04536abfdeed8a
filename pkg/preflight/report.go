// Package preflight checks a machine before an agent runs there, or beside one, and reports what
// will get in its way and what would make it faster. It changes nothing.
package preflight

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// State is the result of a check.
type State string

// The possible results.
const (
	OK      State = "ok"
	Warn    State = "warn"    // it works, but not as well as it could, or not as one may expect
	Fail    State = "fail"    // the agent will not work here
	Unknown State = "unknown" // it could not be checked
)

// Line is the result of one check: what was found, and what to do unless all is well.
type Line struct {
	Check string `json:"check"`
	State State  `json:"state"`
	Found string `json:"found"`
	Cure  string `json:"cure,omitempty"`
}

// Report is the result of all checks.
type Report struct {
	Lines   []Line `json:"lines"`
	Fails   int    `json:"fails"`
	Warns   int    `json:"warns"`
	Unknown int    `json:"unknown"`
}

func newReport(lines []Line) *Report {
	r := &Report{Lines: lines}
	for i := range lines {
		l := &lines[i]
		l.Found, l.Cure = plain(l.Found), plain(l.Cure)
		switch l.State {
		case Fail:
			r.Fails++
		case Warn:
			r.Warns++
		case Unknown:
			r.Unknown++
		}
	}
	return r
}

// maxText limits the text of a line: others choose the names of devices and files in it.
const maxText = 800

// plain makes text safe to print on a terminal.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if runes := []rune(text); len(runes) > maxText {
		return string(runes[:maxText]) + "..."
	}
	return text
}

// Failed returns the names of the checks that failed.
func (r *Report) Failed() []string {
	var failed []string
	for _, l := range r.Lines {
		if l.State == Fail {
			failed = append(failed, l.Check)
		}
	}
	return failed
}

// WriteText writes the report for people to read.
func (r *Report) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, l := range r.Lines {
		fmt.Fprintf(table, "%s\t%s\t%s\n", l.State, l.Check, l.Found)
		if l.Cure != "" {
			fmt.Fprintf(table, "\t\t-> %s\n", l.Cure)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d checks: %d failed, %d warnings, %d unknown\n", len(r.Lines), r.Fails, r.Warns, r.Unknown)
	return out.Flush()
}
