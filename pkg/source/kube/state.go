package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// KindStatus is how far a Source is with one kind of object.
type KindStatus struct {
	Kind string `json:"kind"` // as the API's paths have it: "services"
	// Synced says that the kind was delivered whole at least once.
	Synced bool `json:"synced"`
	// Lacking says that the server does not know the kind, so that there is nothing to deliver.
	Lacking bool `json:"lacking,omitempty"`
	// Error is why the server cannot be asked now, or "". What was delivered stays.
	Error string `json:"error,omitempty"`
	// Since is when Error began, or when the server could be asked again.
	Since           time.Time `json:"since,omitzero"`
	Failures        uint64    `json:"failures"` // requests that failed
	Relists         uint64    `json:"relists"`  // complete lists after the first
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	Changed         time.Time `json:"changed,omitzero"` // when objects came last
}

// state is the KindStatus of a kind that is being followed.
type state struct {
	kind    string
	mayLack bool // a server need not know it
	log     *slog.Logger

	mu sync.Mutex
	is KindStatus
}

func (s *state) status() KindStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.is
	is.Kind = s.kind
	return is
}

// answered notes how one request went. Only a watch that is open ends an outage: who may list but not watch is as good
// as cut off.
func (s *state) answered(response *http.Response, err error, watch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.is.Failures++
		s.begin(err)
	case response.StatusCode == http.StatusOK:
		if watch {
			s.end()
		}
	case response.StatusCode == http.StatusGone: // the server has forgotten that version; a list follows
	case response.StatusCode == http.StatusNotFound && s.mayLack:
	default:
		s.is.Failures++
		if response.Header.Get("Retry-After") != "" { // the client obeys and tells nobody
			s.begin(errors.New(response.Status))
		}
	}
}

// failed notes what the client says of a request in the end, which may be more than its answer said.
func (s *state) failed(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
		return
	}
	// Without the address, which is as long as a line and says nothing that the kind does not.
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(err)
}

// begin notes an error and logs the first of an outage. A different one of the same outage is in the status, not in
// the log.
func (s *state) begin(err error) {
	if s.is.Error == "" {
		s.is.Since = time.Now()
		s.log.Error("cannot read from the API server, keeping the last state", "kind", s.kind, "error", err)
	}
	s.is.Error = err.Error()
}

// end logs the end of an outage, if there was one.
func (s *state) end() {
	if s.is.Error == "" {
		return
	}
	now := time.Now()
	s.log.Info("reading from the API server again", "kind", s.kind, "after", now.Sub(s.is.Since).Round(time.Millisecond))
	s.is.Error, s.is.Since = "", now
}

// lack notes that the server does not know the kind, and logs it when it comes to that.
func (s *state) lack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	if !s.is.Lacking {
		s.log.Info("the cluster has no such kind of object: its CustomResourceDefinition is not installed", "kind", s.kind)
	}
	s.is.Lacking, s.is.Synced = true, true
}

// listed notes that everything of the kind was delivered.
func (s *state) listed(count int, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is.Synced {
		s.is.Relists++
	}
	s.is.Lacking, s.is.Synced = false, true
	s.is.ResourceVersion, s.is.Changed = version, time.Now()
	s.log.Info("listed", "kind", s.kind, "ours", count, "resourceVersion", version)
}

func (s *state) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.Changed = time.Now()
}

func (s *state) reached(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.ResourceVersion = version
}

// detail makes debug messages of everything. A reflector logs each attempt, while an outage has one beginning and one
// end, which state logs.
type detail struct{ slog.Handler }

// Enabled reports whether debug messages are wanted.
func (d detail) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle writes the message as a debug message.
func (d detail) Handle(ctx context.Context, record slog.Record) error {
	record.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, record)
}

// WithAttrs returns a handler that adds the attributes.
func (d detail) WithAttrs(attrs []slog.Attr) slog.Handler { return detail{d.Handler.WithAttrs(attrs)} }

// WithGroup returns a handler that puts what follows into a group.
func (d detail) WithGroup(name string) slog.Handler { return detail{d.Handler.WithGroup(name)} }
