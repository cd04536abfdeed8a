package main

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
	var told []string
	due := map[string]bool{"a": true, "b": true}
	unready, fails := errors.New("not yet"), map[string]error{}
	telling := func(what string) step {
		return step{what, func() bool { return due[what] }, func(context.Context) error {
			told = append(told, what)
			if fails[what] == nil {
				delete(due, what)
			}
			return fails[what]
		}}
	}
	n := &announcement{steps: []step{telling("a"), telling("b")}, ready: func() error { return unready }, log: slog.New(slog.DiscardHandler)}
	look := func(what string, want ...string) {
		t.Helper()
		told = nil
		pause := n.look(t.Context())
		if !slices.Equal(told, want) {
			t.Errorf("%s: told %q, want %q", what, told, want)
		}
		if acted := len(want) > 0; (pause == announceRetry) != acted || (pause == announceLook) == acted {
			t.Errorf("%s: looks again after %v", what, pause)
		}
	}
	look("before the node is ready")
	unready = nil
	fails["a"] = errors.New("no such directory")
	look("when the first cannot be told", "a")
	delete(fails, "a")
	look("when all can be told", "a", "b")
	look("when all is told")
	due["b"] = true
	look("when somebody asks again", "b")
	due["b"], unready = true, errors.New("not any more")
	look("when the node is not ready any more")
}
