package life

import (
	"context"
	"log/slog"
	"time"
)

const (
	AnnounceEvery = time.Second // how often to look for steps that are due
	// announceRetry is the pause after an error, and after a step, until the store shows its
	// effect.
	announceRetry = 10 * time.Second
)

// Announcement tells those who start pods, one after another, that this node can serve them. Pods
// that started earlier would have no network, or Services that nothing serves.
type Announcement struct {
	steps []Step
	ready func() error
	log   *slog.Logger
	said  string // the last error that was logged
}

// Step tells one of them. It may become due again.
type Step struct {
	What string
	Due  func() bool
	Do   func(context.Context) error
}

// NewAnnouncement returns an announcement of the steps, in their order, once ready returns nil.
func NewAnnouncement(ready func() error, log *slog.Logger, steps ...Step) *Announcement {
	return &Announcement{steps: steps, ready: ready, log: log}
}

// Run takes the steps that are due until the context ends.
func (n *Announcement) Run(ctx context.Context) error {
	for pause := time.Duration(0); len(n.steps) > 0; pause = n.step(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
	return nil
}

// step takes the steps that are due, and returns when to look again. A step that fails holds up
// those after it.
func (n *Announcement) step(ctx context.Context) time.Duration {
	pause := AnnounceEvery
	for _, s := range n.steps {
		if !s.Due() {
			continue
		}
		if n.ready() != nil {
			return AnnounceEvery
		}
		pause = announceRetry
		if err := s.Do(ctx); err != nil {
			if err.Error() != n.said {
				n.log.Warn("cannot announce that this node can serve pods, trying again",
					"to", s.What, "error", err)
				n.said = err.Error()
			}
			return announceRetry
		}
		n.log.Info("announced that this node can serve pods", "to", s.What)
		n.said = ""
	}
	return pause
}
