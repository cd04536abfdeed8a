package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"fairlead.io/fairlead/pkg/model"
)

// servers are the known API servers, as HOST:PORT: those of the configuration, and those that the
// cluster had when it was last reached, which a file remembers. A request goes to the server that
// answered last, and to the next one if that cannot be reached. Each must present a certificate for
// its own name.
type servers struct {
	file string // empty: nothing is remembered
	log  *slog.Logger

	mu      sync.Mutex
	given   []string
	known   map[model.Name][]string // by the slice that lists them
	noted   []string                // the content of the file
	current string
}

// newServers returns the servers of the configuration, with main, the one that the credentials
// name, first, and those of the file.
func newServers(main string, given []string, file string, log *slog.Logger) *servers {
	s := &servers{file: file, log: log, given: append([]string{main}, given...), known: map[model.Name][]string{}, current: main}
	if file == "" {
		return s
	}
	content, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot read the remembered API servers", "error", err)
	}
	for line := range strings.Lines(string(content)) {
		if at, err := netip.ParseAddrPort(strings.TrimSpace(line)); err == nil && len(s.noted) < mostServers {
			s.noted = append(s.noted, at.String())
		}
	}
	return s
}

// mostServers bounds how many servers are remembered, because each may have to time out.
const mostServers = 16

// order returns the servers in the order in which to try them.
func (s *servers) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []string{s.current}
	for _, at := range slices.Concat(s.given, s.noted) {
		if !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	return list
}

// addresses returns the servers that are given by an address instead of a name.
func (s *servers) addresses() (list []netip.AddrPort) {
	for _, text := range s.order() {
		if at, err := netip.ParseAddrPort(text); err == nil {
			list = append(list, at)
		}
	}
	return list
}

// asked returns the server that the next request goes to first, and the one that the credentials
// name.
func (s *servers) asked() (current, main string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.given[0]
}

func (s *servers) answered(at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != at {
		s.log.Warn("switched to another API server", "server", at, "before", s.current)
		s.current = at
	}
}

// learn records the servers that a slice of the Service default/kubernetes lists; a nil slice is
// gone.
func (s *servers) learn(name model.Name, slice *model.Slice) {
	if s.file == "" || name.Namespace != "default" || (slice != nil && slice.Service != "kubernetes") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slice == nil && s.known[name] == nil {
		return
	}
	delete(s.known, name)
	if slice != nil {
		for _, port := range slice.Ports {
			for _, endpoint := range slice.Endpoints {
				if port.Protocol == model.TCP && endpoint.Conditions&model.Ready != 0 {
					s.known[name] = append(s.known[name], netip.AddrPortFrom(endpoint.Addr, port.Port).String())
				}
			}
		}
	}
	var all []string
	for _, list := range s.known {
		all = append(all, list...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	all = all[:min(len(all), mostServers)]
	if len(all) == 0 || slices.Equal(all, s.noted) { // the last known servers are better than none
		return
	}
	s.noted = all
	if err := s.write(); err != nil {
		s.log.Warn("cannot remember the API servers: an agent that starts while the configured one is down will find no other",
			"error", err)
	}
}

// learnAll records the servers in list and forgets those of all other slices.
func (s *servers) learnAll(list []*model.Slice) {
	s.mu.Lock()
	gone := slices.Collect(maps.Keys(s.known))
	s.mu.Unlock()
	for _, slice := range list {
		s.learn(slice.Name, slice)
		gone = slices.DeleteFunc(gone, func(name model.Name) bool { return name == slice.Name })
	}
	for _, name := range gone {
		s.learn(name, nil)
	}
}

func (s *servers) write() error {
	staged := s.file + ".new"
	if err := os.MkdirAll(filepath.Dir(s.file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(staged, []byte(strings.Join(s.noted, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(staged, s.file)
}

// anyServer sends requests to the servers, one after another, until one answers.
type anyServer struct {
	next http.RoundTripper
	all  *servers
}

// RoundTrip sends a request.
func (a anyServer) RoundTrip(request *http.Request) (*http.Response, error) {
	var errs []error
	for _, at := range a.all.order() {
		sent := request
		if at != request.URL.Host {
			sent = request.Clone(request.Context())
			sent.URL.Host, sent.Host = at, at
		}
		if len(errs) > 0 && request.GetBody != nil {
			body, err := request.GetBody()
			if err != nil {
				return nil, err
			}
			sent = sent.Clone(request.Context())
			sent.Body = body
		}
		response, err := a.next.RoundTrip(sent)
		if err == nil {
			a.all.answered(at)
			return response, nil
		}
		errs = append(errs, fmt.Errorf("API server %s: %w", at, err))
		if request.Context().Err() != nil || !mayRepeat(request, err) {
			break
		}
	}
	if len(errs) == 1 {
		return nil, errors.Unwrap(errs[0]) // the same error as with a single server
	}
	return nil, errors.Join(errs...)
}

// mayRepeat reports whether a request that failed with err may be sent to another server: it
// changes nothing, or it has not reached a server.
func mayRepeat(request *http.Request, err error) bool {
	if request.Body != nil && request.Body != http.NoBody && request.GetBody == nil {
		return false
	}
	var failed *net.OpError
	return request.Method == http.MethodGet || errors.As(err, &failed) && failed.Op == "dial"
}

// WrappedRoundTripper returns the underlying transport, as client-go's wrappers do.
func (a anyServer) WrappedRoundTripper() http.RoundTripper { return a.next }
