// Package api is the interface between the commands and the running agent: JSON over HTTP, on a
// unix socket that only root may open.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/observe"
)

const (
	maxHeader    = 16 << 10
	maxBody      = 4 << 10
	readTimeout  = 10 * time.Second
	writeTimeout = 2 * time.Minute // a profile takes as long as the client asked for
	idleTimeout  = time.Minute
	shutdownWait = 2 * time.Second
)

// Handlers are the agent's side of the API. All fields must be set, and the functions may be called
// from several goroutines.
type Handlers struct {
	Status   func() observe.Status
	Config   func() any
	Problems func() []model.ObjectProblem
	LogLevel *slog.LevelVar
	// Verify compares the maps with what they should contain, and fixes them if repair is true.
	Verify func(ctx context.Context, repair bool) (observe.Verification, error)
	// Monitor opens a stream of the events that match the filter. The Server closes it.
	Monitor func(monitor.Filter) (Stream, error)
	// Try runs the programs on a packet and tells what they do with it.
	Try func(explain.TrialQuestion) (explain.Trial, error)
	// Policies is nil if no policies are enforced.
	Policies Policies
}

// Server serves the API on a unix socket.
type Server struct {
	path     string
	lock     *os.File
	listener net.Listener
	http     *http.Server
}

// NewServer listens at path, which only this user can open. It replaces a socket that a dead agent
// left behind; if a live agent holds it, the error wraps ErrInUse. Requests are answered once Serve
// runs. The caller must call Serve or Close.
func NewServer(path string, h Handlers) (s *Server, err error) {
	if err := cni.PrepareSocketDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	s = &Server{path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	if s.lock, err = takeLock(path + lockSuffix); err != nil {
		return s, err
	}
	listener, err := cni.ListenSocket(path)
	if err != nil {
		return s, err
	}
	s.listener = listener
	s.http = &http.Server{
		Handler:           h.mux(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
	return s, nil
}

// Serve answers requests until the context ends. It then gives pending requests a moment to finish,
// and closes the Server.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.listener) }()
	select {
	case err := <-failed:
		return errors.Join(fmt.Errorf("serve %s: %w", s.path, err), s.Close())
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownWait)
	defer cancel()
	if s.http.Shutdown(wait) != nil {
		_ = s.http.Close() // ends long requests, such as profiles
	}
	<-failed
	return s.Close()
}

// Close removes the socket and releases the lock for another agent. It may be called twice.
func (s *Server) Close() error {
	var errs []error
	if s.listener != nil {
		if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, fmt.Errorf("close socket: %w", err))
		}
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove socket: %w", err))
		}
	}
	if s.lock != nil {
		// The lock file stays for the next agent, until a Claim removes it.
		errs = append(errs, s.lock.Close())
	}
	s.listener, s.lock = nil, nil
	return errors.Join(errs...)
}

// level is the body of requests and answers about the log level.
type level struct {
	Level string `json:"level"`
}

// failure is the body of an error response.
type failure struct {
	Error string `json:"error"`
}

func (h Handlers) mux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, h.Status()) })
	mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, h.Config()) })
	mux.HandleFunc("GET /v1/problems", func(w http.ResponseWriter, _ *http.Request) {
		problems := h.Problems()
		if problems == nil {
			problems = []model.ObjectProblem{}
		}
		answer(w, http.StatusOK, problems)
	})
	mux.HandleFunc("GET /v1/verify", func(w http.ResponseWriter, r *http.Request) { h.verify(w, r, false) })
	mux.HandleFunc("POST /v1/verify", func(w http.ResponseWriter, r *http.Request) { h.verify(w, r, true) })
	mux.HandleFunc("GET /v1/log-level", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, level{levelName(h.LogLevel.Level())})
	})
	mux.HandleFunc("PUT /v1/log-level", h.setLogLevel)
	mux.HandleFunc("GET /v1/monitor", h.monitor)
	mux.HandleFunc("GET /v1/trial", h.try)
	h.policies(mux)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

func (h Handlers) verify(w http.ResponseWriter, r *http.Request, repair bool) {
	found, err := h.Verify(r.Context(), repair)
	if err != nil {
		answer(w, http.StatusServiceUnavailable, failure{err.Error()})
		return
	}
	answer(w, http.StatusOK, found)
}

func (h Handlers) setLogLevel(w http.ResponseWriter, r *http.Request) {
	var wanted level
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	body.DisallowUnknownFields()
	if err := body.Decode(&wanted); err != nil {
		answer(w, http.StatusBadRequest, failure{fmt.Sprintf("read request: %v", err)})
		return
	}
	parsed, err := ParseLevel(wanted.Level)
	if err != nil {
		answer(w, http.StatusBadRequest, failure{err.Error()})
		return
	}
	h.LogLevel.Set(parsed)
	answer(w, http.StatusOK, level{levelName(parsed)})
}

// ParseLevel returns the log level with the given name.
func ParseLevel(name string) (slog.Level, error) {
	for _, known := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if name == levelName(known) {
			return known, nil
		}
	}
	return 0, fmt.Errorf("unknown log level %q: use debug, info, warn or error", name)
}

func levelName(l slog.Level) string { return strings.ToLower(l.String()) }

func answer(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		code, text = http.StatusInternalServerError, fmt.Appendf(nil, `{"error":%q}`, "encode answer: "+err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // a client that went away needs no answer
}
