// Package cluster connects an agent to where objects come from, an API server or files, and reports to it.
package cluster

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

// Source delivers objects to a Store until its context ends.
type Source interface {
	Run(context.Context) error
	// Fill adds what only the source knows to a status.
	Fill(*observe.SourceStatus)
	// Sample returns the same as numbers, for a scrape.
	Sample() metrics.Source
}

// Events posts problems of objects where their authors look, and of this node where its
// operators look. It must not block.
type Events interface {
	Warn(key model.Key, uid string, reason, message string)
	Notice(key model.Key, uid string, reason, message string)
	// Node posts an event about this node, and reports whether it could: events with the same
	// reason are limited.
	Node(uid string, warning bool, reason, message string) bool
	// Standing posts an event about a state that lasts from one agent to the next, once for all of
	// them.
	Standing(uid, reason, message string) bool
}

// NodeObject changes this node's object in the cluster. Both methods may be repeated.
type NodeObject interface {
	Connect(context.Context) error // says that pods have a network here
	Admit(context.Context) error   // lets pods come
}

// policyCounter counts the cluster's NetworkPolicies.
type policyCounter interface {
	Count(context.Context) (int, error)
}

// API is what an API server offers besides objects. All fields are nil if the source is files.
type API struct {
	Events   Events        // where to post events
	Node     NodeObject    // changes this node's object
	policies policyCounter // counts what is not enforced
}

// NewSource returns the source that the configuration names, and the cluster that comes with it.
func NewSource(cfg *config.Config, store *model.Store, version string, log *slog.Logger) (Source, API, error) {
	if cfg.Source != config.Kubernetes {
		return fileSource{file.New(cfg.Source, store, log)}, API{}, nil
	}
	return newKubeSource(cfg, store, version, log)
}

type fileSource struct{ *file.Source }

func (s fileSource) Fill(status *observe.SourceStatus) {
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

func (s fileSource) Sample() metrics.Source {
	state := s.Status()
	return metrics.Source{
		Kinds:  []metrics.Kind{{Name: "files", Synced: state.Synced}},
		Errors: len(state.Errors), LastChange: state.LastReload,
	}
}
