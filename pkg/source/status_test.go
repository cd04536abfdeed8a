package source

import (
	"strings"
	"testing"
)

// The line of the source says that something cannot be read, and the findings why.
func TestStatusErrors(t *testing.T) {
	for _, tt := range []struct {
		errors []StatusError
		want   string
	}{
		{nil, "kubernetes, synced"},
		{[]StatusError{{"networkpolicies", "unable to decode"}}, "kubernetes, synced, cannot read networkpolicies"},
		{[]StatusError{{"services", "x"}, {"pods", "y"}, {"nodes", "z"}}, "kubernetes, synced, cannot read services and 2 more"},
	} {
		s := &Status{Kind: "kubernetes", Synced: true, Errors: tt.errors}
		if have := s.Text(); have != tt.want {
			t.Errorf("%q, want %q", have, tt.want)
		}
		var found []string
		s.Findings(func(format string, args ...any) { found = append(found, format) })
		if len(found) != len(tt.errors) {
			t.Errorf("%d findings about %d errors: %s", len(found), len(tt.errors), strings.Join(found, "\n"))
		}
	}
}
