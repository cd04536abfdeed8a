package life

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

// notifyEvery is how often the notifier asks for findings. It reports a node as degraded when two answers in a row
// find it so, because a start, or a change that is retried, is over by then.
const notifyEvery = 15 * time.Second

// DegradedNotifier reports, by events and in the log, when the node becomes degraded and when it recovers.
// The findings may change while the node is degraded; only the first are reported.
type DegradedNotifier struct {
	findings func() []string // returns why the node is degraded
	post     func(warning bool, reason, message string) bool
	log      *slog.Logger

	before    bool // the last findings were not empty
	announced bool // the last event said that the node is degraded
}

// NewDegradedNotifier returns a notifier that posts events with post, which may be nil.
func NewDegradedNotifier(findings func() []string, post func(warning bool, reason, message string) bool, log *slog.Logger) *DegradedNotifier {
	if post == nil {
		post = func(bool, string, string) bool { return true }
	}
	return &DegradedNotifier{findings: findings, post: post, log: log}
}

// Run asks for findings until the context ends.
func (h *DegradedNotifier) Run(ctx context.Context) error {
	again := time.NewTicker(notifyEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			h.step(h.findings())
		}
	}
}

// step acts on the findings. An event that cannot be posted now, because a similar one was
// posted shortly before, is posted later if it still applies.
func (h *DegradedNotifier) step(degraded []string) {
	ill := len(degraded) > 0
	switch {
	case ill && h.before && !h.announced:
		text := strings.Join(degraded, " ")
		if h.post(true, "DatapathDegraded", text) {
			h.log.Warn("this node is degraded", "findings", text)
			h.announced = true
		}
	case !ill && h.announced:
		if h.post(false, "DatapathRecovered", "This node is healthy again.") {
			h.log.Info("this node is no longer degraded")
			h.announced = false
		}
	}
	h.before = ill
}
