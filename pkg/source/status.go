package source

import (
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// Status is the state of the source of objects.
type Status struct {
	Kind       string        `json:"kind"`                 // "kubernetes", or the path of the files
	Server     string        `json:"server,omitempty"`     // HOST:PORT of the API server in use
	Configured string        `json:"configured,omitempty"` // HOST:PORT of the API server in the configuration
	Synced     bool          `json:"synced"`
	Missing    []string      `json:"missing,omitempty"` // the kinds of object that were not delivered yet
	Errors     []StatusError `json:"errors,omitempty"`
	LastChange time.Time     `json:"lastChange,omitzero"`
}

// StatusError says why a file or a kind of object could not be read.
type StatusError struct {
	Where   string `json:"where"`
	Message string `json:"message"`
}

// Text returns the line shown in the status of the node.
func (s *Status) Text() string {
	words := []string{s.Kind, "synced"}
	if s.Server != "" {
		words[0] += " at " + s.Server
	}
	if s.Server != s.Configured {
		words[0] += " instead of " + s.Configured
	}
	if !s.Synced {
		words[1] = "not synced" + phrase.List(" (missing: ", s.Missing, ")")
	}
	if !s.LastChange.IsZero() {
		words = append(words, "last change "+phrase.Clock(s.LastChange))
	}
	if n := len(s.Errors); n > 0 {
		words = append(words, "cannot read "+s.Errors[0].Where)
		if n > 1 {
			words[len(words)-1] += fmt.Sprintf(" and %d more", n-1)
		}
	}
	return strings.Join(words, ", ")
}

// Findings says what keeps the source from delivering everything.
func (s *Status) Findings(say func(string, ...any)) {
	if s == nil {
		return
	}
	if !s.Synced {
		say("The source %s has not delivered everything yet%s: what is known is served, and nothing is removed.",
			s.Kind, phrase.List(" (missing: ", s.Missing, ")"))
	}
	for _, e := range s.Errors {
		say("The source cannot read %s: %s.", e.Where, e.Message)
	}
}
