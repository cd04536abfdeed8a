package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

// heraldEvery is how often the herald looks. A node is called degraded at the second look that finds it so, since a start,
// or a change that is tried again, is over by then.
const heraldEvery = 15 * time.Second

// herald tells those who watch the node, by events and in the log, when it becomes degraded and when it is well again.
// Which sentences say so may change all the while; they are told once.
type herald struct {
	look func() []string // what keeps the node from its job
	post func(warning bool, reason, message string) bool
	log  *slog.Logger

	before bool // the last look found it degraded
	told   bool // the last event said that it is
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

// degraded returns what keeps the node from its job.
func (a *agent) degraded() []string {
	var status observe.Status
	reading, err := a.measure()
	status.Maps = reading.Maps
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

// step tells what a look means. What cannot be posted now, since the like was a short time ago, is told at a later look,
// if it is still so.
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
