package kube

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// line is the Source's connection to the server. Cutting it leaves other clients connected.
type line struct {
	mu    sync.Mutex
	down  bool
	conns map[net.Conn]struct{}
	// asked are the answered requests for Services: "list" for a complete list, "watch" to continue
	// from a version.
	asked []string
}

func newLine() *line { return &line{conns: map[net.Conn]struct{}{}} }

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.down {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	if err == nil {
		l.conns[conn] = struct{}{}
	}
	return conn, err
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for conn := range l.conns {
		conn.Close()
	}
	clear(l.conns)
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
	l.asked = nil
}

// requests returns what was requested since the line was mended.
func (l *line) requests() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.asked)
}

// wrap records the requests that pass.
func (l *line) wrap(next http.RoundTripper) http.RoundTripper { return noting{l, next} }

type noting struct {
	line *line
	next http.RoundTripper
}

// RoundTrip sends a request, and records it once it is answered.
func (n noting) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := n.next.RoundTrip(request)
	if err == nil && strings.HasSuffix(request.URL.Path, "/services") {
		query := request.URL.Query()
		what := "list"
		if query.Get("watch") == "true" && query.Get("sendInitialEvents") != "true" {
			what = "watch"
		}
		n.line.mu.Lock()
		defer n.line.mu.Unlock()
		n.line.asked = append(n.line.asked, what)
	}
	return response, err
}
