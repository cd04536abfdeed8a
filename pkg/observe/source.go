package observe

import (
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/phrase"
)

// SourceStatus is the state of the source of objects.
type SourceStatus struct {
	Kind       string        `json:"kind"`                 // "kubernetes", or the path of the files
	Server     string        `json:"server,omitempty"`     // HOST:PORT of the API server in use
	Configured string        `json:"configured,omitempty"` // HOST:PORT of the API server in the configuration
	Synced     bool          `json:"synced"`
	Missing    []string      `json:"missing,omitempty"` // the kinds of object that were not delivered yet
	Errors     []SourceError `json:"errors,omitempty"`
	LastChange time.Time     `json:"lastChange,omitzero"`
}

// SourceError says why a file or a kind of object could not be read.
type SourceError struct {
	Where   string `json:"where"`
	Message string `json:"message"`
}

func (s *SourceStatus) text() string {
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
	return strings.Join(words, ", ")
}

func (s *SourceStatus) findings(say func(string, ...any)) {
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
