package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Limits for each connection. Anyone who can reach the address may ask, and the answers are short.
// A connection is for one request, so none is idle, and it lasts no longer than both timeouts.
const (
	maxHeader    = 8 << 10
	readTimeout  = 2 * time.Second  // for the whole request, however slowly it comes
	writeTimeout = 10 * time.Second // as long as Prometheus waits by default
	shutdownWait = time.Second

	// listenRetry is how often the Server tries again to listen at an address that is in use.
	listenRetry = 5 * time.Second
)

// ServerConfig configures a Server.
type ServerConfig struct {
	// Option is the option that set the address, or else what the address is for.
	Option  string
	Address string                  // host:port
	Network string                  // tcp4 or tcp6; "" means both
	Routes  map[string]http.Handler // by exact path; called for GET and HEAD only
	Handler http.Handler            // serves everything, instead of Routes
	Log     *slog.Logger

	Advice  string             // what to do about a fault; "" means to name Option
	Failed  func(fault string) // called with each new Fault; nil if the log is enough
	Evicted func()             // called for each connection that gave way to another; nil for none

	limit *limiter      // nil for one of the Server's own
	retry time.Duration // 0 means listenRetry
}

// Server serves HTTP at one address. Traffic is forwarded whether or not anyone can ask about it,
// so an address that is in use does not end the agent: the Server logs it, reports it as a Fault,
// and tries again until the address is free.
type Server struct {
	cfg  ServerConfig
	http *http.Server

	mu    sync.Mutex
	at    net.Addr
	fault string
}

// NewServer returns a Server. It answers once Run is called.
func NewServer(cfg ServerConfig) *Server {
	if cfg.retry == 0 {
		cfg.retry = listenRetry
	}
	if cfg.Handler == nil {
		cfg.Handler = routes(cfg.Routes)
	}
	if cfg.limit == nil {
		cfg.limit = newLimiter(cfg.Evicted)
	}
	s := &Server{cfg: cfg, http: &http.Server{
		Handler:                      cfg.Handler,
		ReadHeaderTimeout:            readTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		// Malformed requests from strangers are only of interest for debugging.
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}}
	s.http.SetKeepAlivesEnabled(false)
	return s
}

// Fault says why the Server does not answer and what to do about it, or "" if it does.
func (s *Server) Fault() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// Addr returns where the Server listens, or nil if it does not.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// Run listens and answers until the context ends, then returns nil.
func (s *Server) Run(ctx context.Context) error {
	again := time.NewTicker(s.cfg.retry)
	defer again.Stop()
	for {
		if err := s.serve(ctx); ctx.Err() == nil {
			s.failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// serve listens and answers until the context ends or the listener fails.
func (s *Server) serve(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, cmp.Or(s.cfg.Network, "tcp"), s.cfg.Address)
	if err != nil {
		return s.explain(err)
	}
	s.listening(listener.Addr())
	if tcp, ok := listener.(*net.TCPListener); ok {
		listener = limitedListener{tcp, s.cfg.limit}
	}
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(listener) }()
	select {
	case err := <-failed:
		return s.explain(errors.Join(err, listener.Close()))
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownWait)
	defer cancel()
	if s.http.Shutdown(wait) != nil {
		_ = s.http.Close()
	}
	return <-failed
}

// explain adds to an error what to do about an address that cannot be listened at.
func (s *Server) explain(err error) error {
	advice := s.cfg.Advice
	if advice == "" {
		advice = fmt.Sprintf("set another address with --%s, or an empty one to do without",
			s.cfg.Option)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		advice = "stop the process that uses it (a kube-proxy on this node?), " + advice
	}
	return fmt.Errorf("listen at %s: %w: %s", s.cfg.Address, cause(err), advice)
}

// cause strips the address from an error whose message names it already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// listening records that the Server listens, and clears the fault.
func (s *Server) listening(at net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = at
	if s.fault != "" {
		s.cfg.Log.Info("listening again after a fault", "for", s.cfg.Option,
			"address", s.cfg.Address)
	}
	s.fault = ""
}

// failed records why the Server does not answer, and logs it if the reason is new.
func (s *Server) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != err.Error() {
		s.cfg.Log.Error("cannot serve at this address", "for", s.cfg.Option, "error", err,
			"retry after", s.cfg.retry)
		if s.cfg.Failed != nil {
			s.cfg.Failed(err.Error())
		}
	}
	s.at, s.fault = nil, err.Error()
}

// routes serves exact paths. http.ServeMux would redirect other spellings of a path, and its
// redirects repeat what the client sent.
type routes map[string]http.Handler

// ServeHTTP serves a request.
func (r routes) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	handler := r[request.URL.Path]
	switch {
	case handler == nil:
		plain(w, http.StatusNotFound, "not found\n")
	case request.Method != http.MethodGet && request.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		plain(w, http.StatusMethodNotAllowed, "method not allowed\n")
	default:
		handler.ServeHTTP(w, request)
	}
}

// plain writes a plain text answer.
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that went away needs no answer
}

// Text returns a handler that always answers with text.
func Text(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, text) })
}
