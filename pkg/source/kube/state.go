package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"sync"
	"time"
)

// KindStatus is how far a Source is with one kind of object.
type KindStatus struct {
	Kind string `json:"kind"` // as the API's paths have it: "services"
	// Synced says that the kind was delivered whole at least once.
	Synced bool `json:"synced"`
	// Error is why the server cannot be asked now, or "". What was delivered stays.
	Error string `json:"error,omitempty"`
	// Since is when Error began, or when the server could be asked again.
	Since           time.Time `json:"since,omitzero"`
	Relists         uint64    `json:"relists"` // complete lists after the first
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	Changed         time.Time `json:"changed,omitzero"` // when objects came last
}

// state is the KindStatus of a kind that is being followed.
type state struct {
	kind string
	log  *slog.Logger

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

// outcome notes how asking the server went, and logs it if it went otherwise before. A different error of the same
// outage is in the status, not in the log.
func (s *state) outcome(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	// Without the address, which is as long as a line and says nothing that the kind does not.
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if err != nil {
		if s.is.Error == "" {
			s.is.Since = now
			s.log.Error("cannot read from the API server, keeping the last state", "kind", s.kind, "error", err)
		}
		s.is.Error = err.Error()
		return
	}
	if s.is.Error != "" {
		s.log.Info("reading from the API server again", "kind", s.kind, "after", now.Sub(s.is.Since).Round(time.Millisecond))
		s.is.Error, s.is.Since = "", now
	}
}

// listed notes that everything of the kind was delivered.
func (s *state) listed(count int, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is.Synced {
		s.is.Relists++
	}
	s.is.Synced = true
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
