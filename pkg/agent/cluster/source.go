// Package cluster connects an agent to where objects come from, an API server or files, and reports to it.
package cluster

import (
	"context"
	"log/slog"
	"strconv"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/pkg/source/file"
)

// Source delivers objects to a Store until its context ends.
type Source interface {
	Run(context.Context) error
	// State returns what only the source knows of its status.
	State() source.Status
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
	// NeedPods says whether policies need the pods of all nodes. Nil if they are always delivered.
	NeedPods func(needed bool)
	// PodsError says why they do not come although they are needed, or returns "". Nil if there is nothing to say.
	PodsError func() string
}

// NewSource returns the source that the configuration names, and the cluster that comes with it. If
// policies are followed, it delivers the pods of all nodes to pods.
func NewSource(cfg *config.Config, store *model.Store, pods source.PodReceiver, version string, log *slog.Logger) (Source, API, error) {
	if cfg.Source == config.Kubernetes {
		return newKubeSource(cfg, store, pods, version, log)
	}
	files := file.New(cfg.Source, store, log)
	if cfg.FollowsPolicies() {
		files.FollowPolicies(pods)
	}
	return fileSource{files}, API{}, nil
}

// Status returns the state of a source, and whether it has delivered everything.
func Status(from Source, store *model.Store, kind string) *source.Status {
	status := from.State()
	status.Kind, status.Missing = kind, store.Unsynced()
	status.Synced = len(status.Missing) == 0
	return &status
}

type fileSource struct{ *file.Source }

func (s fileSource) State() source.Status {
	state := s.Status()
	status := source.Status{LastChange: state.LastReload}
	for _, e := range state.Errors {
		where := e.File
		if e.Line > 0 {
			where += ":" + strconv.Itoa(e.Line)
		}
		status.Errors = append(status.Errors, source.StatusError{Where: where, Message: e.Message})
	}
	return status
}

func (s fileSource) Sample() metrics.Source {
	state := s.Status()
	return metrics.Source{
		Kinds:  []metrics.Kind{{Name: "files", Synced: state.Synced}},
		Errors: len(state.Errors), LastChange: state.LastReload,
	}
}
