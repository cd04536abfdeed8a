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

// What one client, or all of them together, may take. Whoever reaches the address may ask, and the answers are short.
const (
	maxConnections = 64
	maxHeader      = 8 << 10
	readTimeout    = 5 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 30 * time.Second
	shutdownWait   = time.Second

	// listenRetry is how often an address that is taken is tried again.
	listenRetry = 5 * time.Second
)

// ServerConfig is what a Server needs.
type ServerConfig struct {
	Option  string                  // that gave the address, or what else it is for
	Address string                  // host:port
	Network string                  // tcp4 or tcp6; "" for both
	Routes  map[string]http.Handler // by exact path; they are asked with GET and HEAD only
	Handler http.Handler            // of everything, instead of Routes
	Log     *slog.Logger

	Advice string             // instead of what names the option, where it was none that gave the address
	Failed func(fault string) // is told what is news of a Fault; nil where the log is enough

	retry time.Duration // 0 for listenRetry
}

// Server answers HTTP at one address. Connections are carried whether anybody can ask about them or not, so an address
// that is taken is no reason to end: it is logged, it is a Fault, and it is tried again until it is free.
type Server struct {
	cfg  ServerConfig
	http *http.Server

	mu    sync.Mutex
	at    net.Addr
	fault string
}

// NewServer returns a Server that answers once Run runs.
func NewServer(cfg ServerConfig) *Server {
	if cfg.retry == 0 {
		cfg.retry = listenRetry
	}
	if cfg.Handler == nil {
		cfg.Handler = routes(cfg.Routes)
	}
	return &Server{cfg: cfg, http: &http.Server{
		Handler:                      cfg.Handler,
		ReadHeaderTimeout:            readTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug), // what strangers send is no news
	}}
}

// Fault says why nobody is answered and what to do about it; "" when all is well.
func (s *Server) Fault() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// Addr returns where the Server listens; nil while it does not.
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

// serve listens and answers until the context ends or something breaks.
func (s *Server) serve(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, cmp.Or(s.cfg.Network, "tcp"), s.cfg.Address)
	if err != nil {
		return s.explain(err)
	}
	s.listening(listener.Addr())
	if tcp, ok := listener.(*net.TCPListener); ok {
		listener = newBounded(tcp, maxConnections)
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

// explain says what to do about an address that cannot be had.
func (s *Server) explain(err error) error {
	advice := s.cfg.Advice
	if advice == "" {
		advice = fmt.Sprintf("give another address with --%s, or an empty one to do without", s.cfg.Option)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		advice = "end what has it (a kube-proxy on this node?), " + advice
	}
	return fmt.Errorf("listen at %s: %w: %s", s.cfg.Address, cause(err), advice)
}

// cause takes the address away from an error, which is said already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// listening notes that all is well.
func (s *Server) listening(at net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = at
	if s.fault != "" {
		s.cfg.Log.Info("listening at last", "for", s.cfg.Option, "address", s.cfg.Address)
	}
	s.fault = ""
}

// failed notes why nobody is answered, and logs what is news.
func (s *Server) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != err.Error() {
		s.cfg.Log.Error("nobody is answered at an address", "for", s.cfg.Option, "error", err, "again in", s.cfg.retry)
		if s.cfg.Failed != nil {
			s.cfg.Failed(err.Error())
		}
	}
	s.at, s.fault = nil, err.Error()
}

// routes answers exact paths. The usual multiplexer redirects to cleaner paths, and its redirects repeat what was asked.
type routes map[string]http.Handler

// ServeHTTP answers a request.
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

// plain answers with text.
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that went away needs no answer
}

// Text returns a handler that always answers with the text.
func Text(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, text) })
}
