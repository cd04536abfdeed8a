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
	"k8s.io/apimachinery/pkg/watch"
)

// KindStatus is the state of one kind of object.
type KindStatus struct {
	Kind string `json:"kind"` // as in the paths of the API: "services"
	// Synced says that the kind has been delivered completely at least once.
	Synced bool `json:"synced"`
	// Lacking says that the server does not know the kind, or that the agent may not read it, so
	// there is nothing to deliver.
	Lacking bool `json:"lacking,omitempty"`
	// Error says why the server cannot be read now, or is "". What was delivered stays.
	Error string `json:"error,omitempty"`
	// Since is when Error began, or when it ended.
	Since           time.Time `json:"since,omitzero"`
	Failures        uint64    `json:"failures"` // failed requests
	Relists         uint64    `json:"relists"`  // complete lists after the first
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	Changed         time.Time `json:"changed,omitzero"` // when the last change arrived
}

// state is the KindStatus of a kind that is being followed.
type state struct {
	kind    string
	mayLack bool // a server may not know it
	log     *slog.Logger

	mu sync.Mutex
	is KindStatus
	// undecoded is why the last watch ended whose events could not be decoded. Changes are then found only by
	// the lists that follow such an end. It is over when an event can be decoded: the next watch opens as well
	// as the last did.
	undecoded error
}

func (s *state) status() KindStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.is
	is.Kind = s.kind
	return is
}

// answered records the result of one request. Only an open watch ends an outage, unless events could not be
// decoded: an agent that may list but not watch would miss every change.
func (s *state) answered(response *http.Response, err error, watches bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.is.Failures++
		s.begin(err)
	case response.StatusCode == http.StatusOK:
		switch {
		case watches && s.undecoded != nil:
			s.begin(s.undecoded)
		case watches:
			s.end()
		}
	// The server no longer has that version; a list follows.
	case response.StatusCode == http.StatusGone:
	case (response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusForbidden) && s.mayLack:
	default:
		s.is.Failures++
		// The client waits and retries without telling anyone.
		if response.Header.Get("Retry-After") != "" {
			s.begin(errors.New(response.Status))
		}
	}
}

// failed records the client's final error for a request, which may say more than the server's
// answer.
func (s *state) failed(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
		return
	}
	// Drop the URL, which fills a line and says nothing that the kind does not.
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(err)
}

// received records an event of a watch.
func (s *state) received(event watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch err := notDecoded(event); {
	case err != nil:
		s.is.Failures++
		s.undecoded = err
		s.begin(err)
	case event.Type != watch.Error && s.undecoded != nil:
		s.undecoded = nil
		s.end()
	}
}

// begin records an error, and logs it if it begins an outage. Later errors of the same outage are
// only in the status.
func (s *state) begin(err error) {
	if s.is.Error == "" {
		s.is.Since = time.Now()
		s.log.Error("cannot read from the API server, keeping the last state", "kind", s.kind, "error", err)
	}
	s.is.Error = err.Error()
}

// end logs the end of an outage, if there is one.
func (s *state) end() {
	if s.is.Error == "" {
		return
	}
	now := time.Now()
	s.log.Info("reading from the API server again", "kind", s.kind, "after", now.Sub(s.is.Since).Round(time.Millisecond))
	s.is.Error, s.is.Since = "", now
}

// lack records that there is nothing to read, and logs it the first time.
func (s *state) lack(forbidden bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undecoded = nil
	s.end()
	switch {
	case s.is.Lacking:
	case forbidden:
		s.log.Warn("the agent may not read this kind of object, and goes on as if there were none: give its ClusterRole get, list and watch, as the chart of this version does", "kind", s.kind)
	default:
		s.log.Info("the cluster has no such kind of object: its CustomResourceDefinition is not installed, or its version has none", "kind", s.kind)
	}
	s.is.Lacking, s.is.Synced = true, true
}

// listed records a complete list.
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

// delivered reports whether the kind was listed before.
func (s *state) delivered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is.ResourceVersion != ""
}

// stopped records that the kind is no longer followed.
func (s *state) stopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is, s.undecoded = KindStatus{Failures: s.is.Failures, Relists: s.is.Relists}, nil
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

// detail turns all messages into debug messages. A reflector logs each attempt, while state logs
// the beginning and the end of an outage.
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
