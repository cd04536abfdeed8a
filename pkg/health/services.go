package health

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// checkRetry is how often a Service's port that is in use is tried again. A port may pass from one
// Service to another, and load balancers ask every few seconds.
const checkRetry = time.Second

// ServiceCheck is a port at which load balancers ask about one Service in one address family.
type ServiceCheck struct {
	Network   string // tcp4 or tcp6
	Port      uint16
	Endpoints int // ready endpoints on this node
}

// ServicesConfig configures Services.
type ServicesConfig struct {
	// Healthy reports whether this node serves traffic and keeps up with changes.
	Healthy func() bool
	Count   func(code int) // called for every answer
	Evicted func()         // called for each connection that gave way to another; nil for none
	// Start calls run in a goroutine of its own, until the agent ends.
	Start func(run func(ctx context.Context))
	Log   *slog.Logger
}

// Services answers at the health check ports of Services, as kube-proxy does: 200 if this node is
// healthy and has ready endpoints of the Service, 503 otherwise. The answer includes the number of
// endpoints, which load balancers may use as a weight.
type Services struct {
	cfg ServicesConfig
	// All ports share one limit, or open files would grow with the number of Services.
	limit *limiter

	mu     sync.Mutex
	checks map[serviceName]map[string]*check // by network
}

type serviceName struct{ namespace, name string }

// check is one port that Services answers at.
type check struct {
	port      uint16
	endpoints atomic.Int64
	end       context.CancelFunc
}

// NewServices returns Services that answer at no port yet.
func NewServices(cfg ServicesConfig) *Services {
	return &Services{cfg: cfg, limit: newLimiter(cfg.Evicted), checks: map[serviceName]map[string]*check{}}
}

// Set replaces the checks of a Service. It does not wait for ports to open or close. It calls
// failed when a port cannot be opened, which is then tried again.
func (s *Services) Set(namespace, name string, checks []ServiceCheck, failed func(fault string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := serviceName{namespace, name}
	old, now := s.checks[key], map[string]*check{}
	for _, wanted := range checks {
		c := old[wanted.Network]
		if c == nil || c.port != wanted.Port {
			c = &check{port: wanted.Port}
			c.endpoints.Store(int64(wanted.Endpoints))
			s.start(key, wanted.Network, c, failed)
		}
		c.endpoints.Store(int64(wanted.Endpoints))
		now[wanted.Network] = c
	}
	for network, c := range old {
		if now[network] != c {
			c.end()
		}
	}
	if s.checks[key] = now; len(now) == 0 {
		delete(s.checks, key)
	}
}

// start answers at a port until the check or the agent ends.
func (s *Services) start(key serviceName, network string, c *check, failed func(string)) {
	ctx, end := context.WithCancel(context.Background())
	c.end = end
	host := "0.0.0.0"
	if network == "tcp6" {
		host = "::"
	}
	server := NewServer(ServerConfig{
		Option:  fmt.Sprintf("healthCheckNodePort of %s/%s", key.namespace, key.name),
		Address: net.JoinHostPort(host, strconv.Itoa(int(c.port))), Network: network, Handler: s.handler(key, c),
		Advice: "or give the Service another healthCheckNodePort", Failed: failed, Log: s.cfg.Log,
		limit: s.limit, retry: checkRetry,
	})
	s.cfg.Start(func(agent context.Context) {
		defer context.AfterFunc(agent, end)()
		_ = server.Run(ctx) // ends only with its context, and then returns nil
	})
}

// handler answers about a Service, whatever the path. The body is byte for byte kube-proxy's,
// because clients may compare it.
func (s *Services) handler(key serviceName, c *check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		endpoints, healthy := c.endpoints.Load(), s.cfg.Healthy()
		code := http.StatusServiceUnavailable
		if endpoints > 0 && healthy {
			code = http.StatusOK
		}
		s.cfg.Count(code)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(endpoints, 10))
		w.WriteHeader(code)
		fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
			key.namespace, key.name, endpoints, healthy)
	})
}
