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

// checkRetry is how often a Service's port that is taken is tried again. A port may pass from one Service to the next,
// and load balancers ask every few seconds.
const checkRetry = time.Second

// ServiceCheck is a port at which load balancers ask about one Service, in one family.
type ServiceCheck struct {
	Network   string // tcp4 or tcp6
	Port      uint16
	Endpoints int // of this node that are ready
}

// ServicesConfig is what Services need.
type ServicesConfig struct {
	Healthy func() bool                         // this node serves what it is sent
	Count   func(code int)                      // is told of every answer
	Start   func(run func(ctx context.Context)) // runs it beside, until the agent ends
	Log     *slog.Logger
}

// Services answers at the health check ports of Services, as kube-proxy does: 200 while this node serves, and has
// endpoints of the Service that are ready, otherwise 503. The number of endpoints is told too, as a weight by which load
// balancers may share out traffic.
type Services struct {
	cfg ServicesConfig

	mu     sync.Mutex
	checks map[serviceName]map[string]*check // by network
}

type serviceName struct{ namespace, name string }

// check is one port that is answered at.
type check struct {
	port      uint16
	endpoints atomic.Int64
	end       context.CancelFunc
}

// NewServices returns Services without any.
func NewServices(cfg ServicesConfig) *Services {
	return &Services{cfg: cfg, checks: map[serviceName]map[string]*check{}}
}

// Set replaces what is answered about a Service, without waiting for ports to open or to close. Failed is told when a
// port cannot be had, which is tried again.
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

// start answers at a port until the check is ended, or the agent.
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
		Advice: "or give the Service another healthCheckNodePort", Failed: failed, Log: s.cfg.Log, retry: checkRetry,
	})
	s.cfg.Start(func(agent context.Context) {
		defer context.AfterFunc(agent, end)()
		_ = server.Run(ctx) // it ends with its context alone, and without an error
	})
}

// handler answers about a Service, whatever the path. The text is kube-proxy's to the byte: somebody will match it.
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
