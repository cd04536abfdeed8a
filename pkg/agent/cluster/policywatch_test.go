package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/source"
)

// TestPolicyWatch gives a PolicyWatch a series of counts, each of which finds so many policies, or
// fails if it is -1. Posts are refused if they come too soon.
func TestPolicyWatch(t *testing.T) {
	for _, test := range []struct {
		name    string
		counts  []int
		refused []int // at these counts
		posts   []int // counts that posted
		count   *int
		fault   string
	}{
		{"none", []int{0, 0}, nil, nil, new(0), ""},
		{"from the start", []int{3, 3, 4}, nil, []int{0}, new(4), ""},
		{"the first comes later", []int{0, 1, 2}, nil, []int{1}, new(2), ""},
		{"refused at first", []int{0, 1, 1, 1}, []int{1, 2}, []int{3}, new(1), ""},
		{"gone and back", []int{1, 0, 2}, nil, []int{0, 2}, new(2), ""},
		{"cannot be counted", []int{-1, -1}, nil, nil, nil, "forbidden"},
		{"for a while", []int{2, -1, 2}, nil, []int{0}, new(2), ""},
		{"no longer", []int{2, -1}, nil, []int{0}, new(2), "forbidden"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var posts []int
			at := 0
			p := &PolicyWatch{log: slog.New(slog.DiscardHandler),
				count: func(context.Context) (int, error) {
					if test.counts[at] < 0 {
						return 0, errors.New("forbidden")
					}
					return test.counts[at], nil
				},
				post: func(message string) bool {
					if message != unenforced(test.counts[at]) {
						t.Errorf("posted %q", message)
					}
					if slices.Contains(test.refused, at) {
						return false
					}
					posts = append(posts, at)
					return true
				}}
			for at = range test.counts {
				p.recount(t.Context())
			}
			if diff := cmp.Diff(test.posts, posts); diff != "" {
				t.Errorf("events by count (-want +got):\n%s", diff)
			}
			if s := p.Status(); !cmp.Equal(s.Count, test.count) || s.Error != test.fault || s.Enforced || s.Checked.IsZero() != (s.Count == nil) {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestNoPolicyWatch checks that if objects come from files, there are no policies to count, and
// nothing is said about them.
func TestNoPolicyWatch(t *testing.T) {
	p := NewPolicyWatch(API{}, nil, slog.New(slog.DiscardHandler))
	if p != nil || p.Status() != (*source.PolicyStatus)(nil) || p.Run(t.Context()) != nil {
		t.Errorf("the agent counts policies: %+v", p)
	}
}
