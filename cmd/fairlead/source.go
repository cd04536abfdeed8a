package main

import (
	"context"
	"log/slog"
	"strconv"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/source/file"
)

// source delivers objects into a Store until its context ends.
type source interface {
	Run(context.Context) error
	// fill tells a status what only the source knows.
	fill(*observe.SourceStatus)
	// sample tells a scrape the same in numbers.
	sample() metrics.Source
}

// eventSink posts what is wrong with an object, or with this node, where its author or operator looks. It must not block.
type eventSink interface {
	Warn(key model.Key, uid string, reason, message string)
	// Node posts how this node is doing, and reports whether it could: the same reason counts only once in a while.
	Node(uid string, warning bool, reason, message string) bool
	// Standing posts what is so of this node from one agent to the next, once for all of them.
	Standing(uid, reason, message string) bool
}

// nodeObject is what the cluster has of this node. Both may be repeated.
type nodeObject interface {
	Connect(context.Context) error // pods have a network here
	Admit(context.Context) error   // they need not stay away any more
}

// policyCounter tells how many NetworkPolicies the cluster has.
type policyCounter interface {
	Count(context.Context) (int, error)
}

// cluster is what there is beside the objects where they come from an API server; each is nil where they come from files.
type cluster struct {
	events   eventSink     // where to post events
	node     nodeObject    // where others look for this node
	policies policyCounter // of what is not enforced
}

// newSource returns the source that the configuration names, and what comes with it.
func newSource(cfg *config.Config, store *model.Store, log *slog.Logger) (source, cluster, error) {
	if cfg.Source != config.Kubernetes {
		return fileSource{file.New(cfg.Source, store, log)}, cluster{}, nil
	}
	return newKubeSource(cfg, store, log)
}

type fileSource struct{ *file.Source }

func (s fileSource) fill(status *observe.SourceStatus) {
	state := s.Status()
	status.LastChange = state.LastReload
	for _, e := range state.Errors {
		where := e.File
		if e.Line > 0 {
			where += ":" + strconv.Itoa(e.Line)
		}
		status.Errors = append(status.Errors, observe.SourceError{Where: where, Message: e.Message})
	}
}

func (s fileSource) sample() metrics.Source {
	state := s.Status()
	return metrics.Source{
		Kinds:  []metrics.Kind{{Name: "files", Synced: state.Synced}},
		Errors: len(state.Errors), LastChange: state.LastReload,
	}
}
