// Package preflight looks at a machine before an agent is there, or beside one, and says what will be in its way and what
// would make it faster. It sets nothing.
package preflight

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// State is what a check came to.
type State string

// The states.
const (
	OK      State = "ok"
	Warn    State = "warn"    // it works, but not as well as it could, or not as somebody may think
	Fail    State = "fail"    // the agent will not do its work here
	Unknown State = "unknown" // it could not be looked at
)

// Line is one check: what was found, and what helps unless all is well.
type Line struct {
	Check string `json:"check"`
	State State  `json:"state"`
	Found string `json:"found"`
	Cure  string `json:"cure,omitempty"`
}

// Report is what all checks found.
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

// maxText is how long what was found may be. Names of devices and files are whoever's who made them.
const maxText = 600

// plain returns text that a terminal shows as it is.
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

// WriteText writes the report for people.
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
