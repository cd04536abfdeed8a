package main

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

const (
	announceEvery = time.Second // how often to look for steps that are due
	// announceRetry is the pause after an error, and after a step, until the store shows its
	// effect.
	announceRetry = 10 * time.Second
)

// announcement tells those who start pods, one after another, that this node can serve them. Pods
// that started earlier would have no network, or Services that nothing serves.
type announcement struct {
	steps []step
	ready func() error
	log   *slog.Logger
	said  string // the last error that was logged
}

// step tells one of them. It may become due again.
type step struct {
	what string
	due  func() bool
	do   func(context.Context) error
}

func (a *agent) newAnnouncement(node nodeObject, log *slog.Logger) *announcement {
	var steps []step
	main, written := a.cfg.PodNetwork == "main", a.cfg.CNIConfDir == ""
	if !written {
		// The file stays when the agent ends. Pods that start then wait for the next agent.
		steps = append(steps, step{"the container runtime", func() bool { return !written }, func(context.Context) error {
			_, err := configureRuntime(a.cfg)
			written = err == nil
			return err
		}})
	}
	if node != nil && main {
		steps = append(steps, step{"readers of the Node's conditions", func() bool { return !a.store.Self().Network }, node.Connect})
	}
	if node != nil { // last, because it lets pods come
		steps = append(steps, step{"the scheduler", func() bool { return a.store.Self().Awaiting }, node.Admit})
	}
	return &announcement{steps: steps, ready: a.unready, log: log}
}

// run takes the steps that are due until the context ends.
func (n *announcement) run(ctx context.Context) error {
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
func (n *announcement) step(ctx context.Context) time.Duration {
	pause := announceEvery
	for _, s := range n.steps {
		if !s.due() {
			continue
		}
		if n.ready() != nil {
			return announceEvery
		}
		pause = announceRetry
		if err := s.do(ctx); err != nil {
			if err.Error() != n.said {
				n.log.Warn("cannot announce that this node can serve pods, trying again",
					"to", s.what, "error", err)
				n.said = err.Error()
			}
			return announceRetry
		}
		n.log.Info("announced that this node can serve pods", "to", s.what)
		n.said = ""
	}
	return pause
}

// unready returns why pods cannot be served yet.
func (a *agent) unready() error {
	for _, check := range a.checks() {
		if err := check.Run(); err != nil {
			return err
		}
	}
	if a.cfg.PodNetwork != "main" {
		return nil
	}
	if _, err := a.podCIDRs(); err != nil {
		return err
	}
	if stats := a.fabricStats(); stats == nil || stats.Pending {
		return errors.New("the routes to other nodes' pods are not written yet")
	}
	return nil
}
