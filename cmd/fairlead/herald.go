package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

// heraldEvery is how often the herald looks. It reports a node as degraded when two looks in a row
// find it so, because a start, or a change that is retried, is over by then.
const heraldEvery = 15 * time.Second

// herald reports, by events and in the log, when the node becomes degraded and when it recovers.
// The findings may change while the node is degraded; only the first are reported.
type herald struct {
	look func() []string // returns why the node is degraded
	post func(warning bool, reason, message string) bool
	log  *slog.Logger

	before bool // the last look found the node degraded
	told   bool // the last event said that the node is degraded
}

func newHerald(look func() []string, store *model.Store, events eventSink, log *slog.Logger) *herald {
	h := &herald{look: look, post: func(bool, string, string) bool { return true }, log: log}
	if events != nil {
		h.post = func(warning bool, reason, message string) bool {
			return events.Node(store.Self().UID, warning, reason, message)
		}
	}
	return h
}

// degraded returns why the node is degraded.
func (a *agent) degraded() []string {
	var status observe.Status
	reading, err := a.measure()
	a.fillMaps(&status, &reading)
	a.complete(&status, err)
	return status.Degraded
}

// run looks until the context ends.
func (h *herald) run(ctx context.Context) error {
	again := time.NewTicker(heraldEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			h.step(h.look())
		}
	}
}

// step acts on the result of a look. An event that cannot be posted now, because a similar one was
// posted shortly before, is posted after a later look if it still applies.
func (h *herald) step(degraded []string) {
	ill := len(degraded) > 0
	switch {
	case ill && h.before && !h.told:
		text := strings.Join(degraded, " ")
		if h.post(true, "DatapathDegraded", text) {
			h.log.Warn("this node is degraded", "findings", text)
			h.told = true
		}
	case !ill && h.told:
		if h.post(false, "DatapathRecovered", "This node is healthy again.") {
			h.log.Info("this node is no longer degraded")
			h.told = false
		}
	}
	h.before = ill
}
