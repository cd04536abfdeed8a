package life

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
)

// TestAnnouncement checks that the steps are taken in order, not before the node is ready, and
// again when they become due.
func TestAnnouncement(t *testing.T) {
	var announced []string
	due := map[string]bool{"a": true, "b": true}
	unready, fails := errors.New("not yet"), map[string]error{}
	telling := func(what string) Step {
		return Step{what, func() bool { return due[what] }, func(context.Context) error {
			announced = append(announced, what)
			if fails[what] == nil {
				delete(due, what)
			}
			return fails[what]
		}}
	}
	n := &Announcement{steps: []Step{telling("a"), telling("b")}, ready: func() error { return unready }, log: slog.New(slog.DiscardHandler)}
	steps := func(what string, want ...string) {
		t.Helper()
		announced = nil
		pause := n.step(t.Context())
		if !slices.Equal(announced, want) {
			t.Errorf("%s: announced %q, want %q", what, announced, want)
		}
		if acted := len(want) > 0; (pause == announceRetry) != acted || (pause == AnnounceEvery) == acted {
			t.Errorf("%s: looks again after %v", what, pause)
		}
	}
	steps("before the node is ready")
	unready = nil
	fails["a"] = errors.New("no such directory")
	steps("when the first cannot be told", "a")
	delete(fails, "a")
	steps("when all can be told", "a", "b")
	steps("when all is told")
	due["b"] = true
	steps("when somebody asks again", "b")
	due["b"], unready = true, errors.New("not any more")
	steps("when the node is not ready any more")
}
