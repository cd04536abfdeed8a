package kube

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
)

// apiServers is several API servers that share a certificate, valid only for 127.0.0.1, or have none.
type apiServers struct {
	list  []*httptest.Server
	asked []string // the servers that were asked, in order
}

func newAPIServers(t *testing.T, n int, encrypted bool) *apiServers {
	t.Helper()
	s := &apiServers{}
	for i := range n {
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			s.asked = append(s.asked, fmt.Sprint(i, " ", r.Method, string(body)))
		})
		server := httptest.NewUnstartedServer(handler)
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		if encrypted {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		s.list = append(s.list, server)
	}
	return s
}

func (s *apiServers) host(i int) string { return s.list[i].Listener.Addr().String() }

// client returns a client that is given the first server, and others.
func (s *apiServers) client(t *testing.T, file string, given ...string) (*http.Client, *servers) {
	t.Helper()
	base := &rest.Config{Host: s.list[0].URL}
	if cert := s.list[0].Certificate(); cert != nil {
		base.CAData = pemOf(cert.Raw)
	}
	cfg, all, err := restConfig(&Config{REST: base, Servers: given, ServersFile: file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client, all
}

func (s *apiServers) ask(t *testing.T, client *http.Client, method, body string) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.list[0].URL+"/api", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err == nil {
		response.Body.Close()
	}
	return err
}

// TestServers checks that if a server cannot be reached, the same request goes to the next one,
// which then stays in use.
func TestServers(t *testing.T) {
	s := newAPIServers(t, 3, true)
	client, all := s.client(t, "", s.host(1), s.host(2))
	var want []string
	step := func(method, body, at string) {
		t.Helper()
		if err := s.ask(t, client, method, body); err != nil {
			t.Fatal(err)
		}
		if want = append(want, at+" "+method+body); !slices.Equal(s.asked, want) {
			t.Fatalf("requests %q, want %q", s.asked, want)
		}
		status := (&Source{servers: all}).Status()
		if i, _ := strconv.Atoi(at); status.Server != s.host(i) || status.Configured != s.host(0) {
			t.Fatalf("asked is %s in the place of %s, want server %s", status.Server, status.Configured, at)
		}
	}
	step(http.MethodGet, "", "0")
	s.list[0].Close()
	utilnet.CloseIdleConnectionsFor(client.Transport)
	step(http.MethodPost, "an event", "1")
	step(http.MethodGet, "", "1")
	s.list[1].Close()
	utilnet.CloseIdleConnectionsFor(client.Transport)
	step(http.MethodGet, "", "2")
	s.list[2].Close()
	utilnet.CloseIdleConnectionsFor(client.Transport)
	err := s.ask(t, client, http.MethodGet, "")
	for i := range s.list {
		if err == nil || !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), s.host(i)) {
			t.Errorf("with none left: %v, which says nothing of %s", err, s.host(i))
		}
	}
}

// TestServersOnce checks that a request that changes something is not sent to another server once
// the first may have received it. After the context ends, no server is asked.
func TestServersOnce(t *testing.T) {
	s := newAPIServers(t, 2, true)
	client, _ := s.client(t, "", s.host(1))
	well := s.list[0].Config.Handler
	s.list[0].Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		panic(http.ErrAbortHandler)
	})
	if err := s.ask(t, client, http.MethodPost, "an event"); err == nil || len(s.asked) != 0 {
		t.Errorf("requests %q, %v", s.asked, err)
	}
	if err := s.ask(t, client, http.MethodGet, "again"); err != nil || !slices.Equal(s.asked, []string{"1 GETagain"}) {
		t.Errorf("requests %q, %v", s.asked, err)
	}
	s.list[0].Config.Handler = well
	if err := s.ask(t, client, http.MethodGet, ""); err != nil || !slices.Equal(s.asked[1:], []string{"1 GET"}) {
		t.Errorf("after the first server is back: requests %q, %v; want the server that answered last",
			s.asked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.list[0].URL, nil)
	if _, err := client.Do(request); !errors.Is(err, context.Canceled) || len(s.asked) != 2 {
		t.Errorf("after the end: requests %q, %v", s.asked, err)
	}
}

// TestServersOfOthers checks that a server without a certificate for its own name is not trusted.
func TestServersOfOthers(t *testing.T) {
	s := newAPIServers(t, 1, true)
	other := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked") }))
	other.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	listener, err := net.Listen("tcp", "127.0.0.2:0") // not in the certificate
	if err != nil {
		t.Fatal(err)
	}
	other.Listener.Close()
	other.Listener = listener
	other.StartTLS()
	defer other.Close()
	client, _ := s.client(t, "", listener.Addr().String())
	s.list[0].Close()
	if err := s.ask(t, client, http.MethodGet, ""); err == nil || !strings.Contains(err.Error(), "127.0.0.2") {
		t.Errorf("%v", err)
	}
}

// TestServersRemembered checks that the cluster's servers are remembered for an agent that starts
// while the configured one is down, if certificates allow telling them from impostors.
func TestServersRemembered(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "api-servers")
	s := newAPIServers(t, 2, true)
	_, all := s.client(t, file)
	at := netip.MustParseAddrPort(s.host(1))
	slice := func(namespace, name, service string, ready model.Conditions, addrs ...netip.Addr) *model.Slice {
		slice := &model.Slice{Name: model.Name{Namespace: namespace, Name: name}, Service: service, Ports: []model.SlicePort{{Name: "https", Port: at.Port(), Protocol: model.TCP}}}
		for _, addr := range addrs {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Conditions: ready})
		}
		return slice
	}
	read := func(what string, want ...string) {
		t.Helper()
		content, err := os.ReadFile(file)
		if err != nil && len(want) > 0 || !slices.Equal(strings.Fields(string(content)), want) {
			t.Errorf("%s: %q, %v, want %q", what, content, err, want)
		}
	}
	port := fmt.Sprint(at.Port())
	other := netip.MustParseAddr("192.0.2.1")
	all.learnAll([]*model.Slice{slice("shop", "kubernetes", "kubernetes", model.Ready, other), slice("default", "web", "web", model.Ready, other)})
	read("others' endpoints")
	all.learn(model.Name{Namespace: "default", Name: "kubernetes"}, slice("default", "kubernetes", "kubernetes", model.Ready, at.Addr(), other))
	read("two", s.host(1), "192.0.2.1:"+port)
	all.learnAll([]*model.Slice{slice("default", "kubernetes", "kubernetes", model.Ready, at.Addr())})
	read("one", s.host(1))
	all.learnAll([]*model.Slice{slice("default", "kubernetes", "kubernetes", 0, other)})
	read("none is ready", s.host(1))
	all.learn(model.Name{Namespace: "default", Name: "kubernetes"}, nil)
	all.learnAll(nil)
	read("gone", s.host(1))
	if err := os.WriteFile(file, []byte("no address\n"+strings.Repeat("192.0.2.9:1\n", 100)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, all := s.client(t, file); len(all.order()) != 2 {
		t.Errorf("from a corrupt file: %q", all.order())
	}
	if err := os.WriteFile(file, []byte(s.host(1)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.list[0].Close()
	client, _ := s.client(t, file)
	if err := s.ask(t, client, http.MethodGet, ""); err != nil || !slices.Equal(s.asked, []string{"1 GET"}) {
		t.Errorf("at the start: requests %q, %v", s.asked, err)
	}
	plain := newAPIServers(t, 1, false)
	if _, all := plain.client(t, file); len(all.order()) != 1 {
		t.Errorf("without certificates, %q would be used", all.order())
	}
}

func pemOf(raw []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}) }
