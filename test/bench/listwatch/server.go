// Package listwatch simulates an API server for the benchmarks of agents, with any number of
// Services that they can stand, and changes at any rate. It supports what client-go requests when
// it lists and watches in protobuf: a list as a stream of events or in pages, watches from a
// resource version, bookmarks, and 410 Gone for clients that were away too long.
//
// Objects are made and encoded on request, and only the changes are stored. So a server with a
// hundred thousand Services needs a few megabytes, and a benchmark does not mistake the server's
// memory for the agent's. It has no authentication, and only listens on loopback.
package listwatch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

const contentType = runtime.ContentTypeProtobuf

// Config configures a Server.
type Config struct {
	Fleet     Fleet
	Memory    int           // number of events to remember; zero = 65536
	Bookmarks time.Duration // interval of bookmarks in watches; zero = a minute, as upstream
	Paged     bool          // refuse to stream lists, as servers before 1.34 do
}

// Server is an API server with a made-up cluster.
type Server struct {
	cfg   Config
	state *clusterState
}

// New returns a Server.
func New(cfg Config) (*Server, error) {
	if err := cfg.Fleet.check(); err != nil {
		return nil, fmt.Errorf("make up a cluster: %w", err)
	}
	if cfg.Memory == 0 {
		cfg.Memory = 1 << 16
	}
	if cfg.Bookmarks == 0 {
		cfg.Bookmarks = time.Minute
	}
	if cfg.Memory < 1 || cfg.Bookmarks < 0 {
		return nil, errors.New("make up a cluster: the memory and the time between bookmarks cannot be negative")
	}
	return &Server{cfg: cfg, state: newClusterState(cfg.Fleet, cfg.Memory)}, nil
}

// Fleet returns the initial size of the cluster.
func (s *Server) Fleet() Fleet { return s.cfg.Fleet }

// Revision returns the resource version of the last change.
func (s *Server) Revision() uint64 { return s.state.now() }

// Change changes an object: the port of a Service, the readiness of a slice's last endpoint, or an
// annotation of any other kind.
func (s *Server) Change(kind Kind, number int) error {
	return s.state.edit(func() error { return s.state.change(kind, number) })
}

// AddService adds a Service with its pods and its slice, in the same order as in a real cluster,
// and returns its number.
func (s *Server) AddService() (number int, err error) {
	err = s.state.edit(func() error {
		grown := s.cfg.Fleet
		grown.Services = s.state.tables[Services].count + 1
		if err := grown.check(); err != nil {
			return fmt.Errorf("add a service: %w", err)
		}
		number = s.state.add(Services)
		for range s.cfg.Fleet.Endpoints {
			s.state.add(Pods)
		}
		s.state.add(Slices)
		return nil
	})
	return number, err
}

// DeleteService deletes a Service, its slice and its pods.
func (s *Server) DeleteService(number int) error {
	return s.state.edit(func() error {
		errs := []error{s.state.remove(Services, number), s.state.remove(Slices, number)}
		for i := range s.cfg.Fleet.Endpoints {
			errs = append(errs, s.state.remove(Pods, number*s.cfg.Fleet.Endpoints+i))
		}
		return errors.Join(errs...)
	})
}

// ReplacePod deletes a pod and adds another.
func (s *Server) ReplacePod(number int) error {
	return s.state.edit(func() error {
		err := s.state.remove(Pods, number)
		s.state.add(Pods)
		return err
	})
}

// Expire forgets all past changes: all watches end with 410 Gone, and so do attempts to resume
// them.
func (s *Server) Expire() {
	_ = s.state.edit(func() error {
		s.state.forget()
		return nil
	})
}

// ServeHTTP answers the requests of client-go.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for k := range kinds {
		if r.URL.Path == k.info().path && r.Method == http.MethodGet {
			s.serveKind(w, r, k)
			return
		}
	}
	switch {
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") && strings.HasSuffix(r.URL.Path, "/events"):
		echo(w, r)
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/control/"):
		s.control(w, r)
	case r.URL.Path == "/readyz":
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte("ok"))
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) serveKind(w http.ResponseWriter, r *http.Request, k Kind) {
	if accept := r.Header.Get("Accept"); !strings.Contains(accept, contentType) {
		http.Error(w, "this server speaks only "+contentType+", but the request accepts "+accept, http.StatusNotAcceptable)
		return
	}
	q, refusal := s.parseQuery(k, r.URL.Query())
	if refusal != nil {
		refuse(w, refusal)
		return
	}
	if q.watch {
		s.serveWatch(w, r, k, &q)
		return
	}
	s.serveList(w, k, &q)
}

// Listen opens a socket for a Server. It only allows loopback, since there is no authentication.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen for requests: %w", err)
	}
	if !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("listen for requests: %s is not a loopback address, and this server has no authentication", address)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for requests: %w", err)
	}
	return listener, nil
}

// Kubeconfig returns a minimal kubeconfig for a server.
func Kubeconfig(address net.Addr) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: "http://%s"}}]
users: [{name: bench}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
current-context: bench
`, address)
}

// Serve answers requests until the context ends, which ends all watches.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve requests: %w", err)
	}
	return nil
}
