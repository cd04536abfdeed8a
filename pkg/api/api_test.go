package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/reconcile"
)

// samplePolicies answers as an agent that enforces policies does.
type samplePolicies struct{}

// Names returns the name of a rule.
func (samplePolicies) Names() []policies.RuleName {
	return []policies.RuleName{{Number: 7, Policy: "networkpolicy shop/web", Words: "networkpolicy shop/web, ingress: no rule accepts it"}}
}

// List returns a number.
func (samplePolicies) List() policies.Listing { return policies.Listing{Others: 3} }

// Get returns the name that was asked for.
func (samplePolicies) Get(name string) (policies.Found, error) {
	return policies.Found{Policies: []policies.PolicyView{{PolicySummary: policies.PolicySummary{Policy: name}}}}, nil
}

// Explain returns what was asked.
func (samplePolicies) Explain(q policies.Question) ([]policies.Answer, error) {
	return []policies.Answer{{Outcome: q.From + " " + q.To + " " + q.Ports.String()}}, nil
}

// Audit returns what it was given.
func (samplePolicies) Audit(name string, text []byte) (policies.Audit, error) {
	return policies.Audit{Policies: []string{name}, Flows: len(text)}, nil
}

func handlers() Handlers {
	return Handlers{
		Status: func() observe.Status { return observe.Status{Node: "worker-1", Services: 3} },
		Config: func() any { return []config.Origin{{Name: "bpffs", Value: "/sys/fs/bpf", From: "default"}} },
		Problems: func() []model.ObjectProblem {
			return []model.ObjectProblem{{Object: "shop/web", Problem: model.Problem{Reason: "FrontendConflict", Message: "taken"}}}
		},
		LogLevel: new(slog.LevelVar),
		Verify: func(_ context.Context, repair bool) (observe.Verification, error) {
			return observe.Verification{Repair: repair, Report: reconcile.Report{Services: 3}}, nil
		},
	}
}

// serve runs a Server until stop is called.
func serve(t *testing.T, path string, h Handlers) (stop func()) {
	t.Helper()
	s, err := NewServer(path, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func socket(t *testing.T) string { return filepath.Join(t.TempDir(), "state", "agent.sock") }

func TestClient(t *testing.T) {
	path, h := socket(t), handlers()
	stop := serve(t, path, h)
	defer stop()
	client := NewClient(path)
	ctx := t.Context()
	status, err := client.Status(ctx)
	if err != nil || status.Node != "worker-1" || status.Services != 3 {
		t.Errorf("status: %+v, %v", status, err)
	}
	origins, err := client.Config(ctx)
	if diff := cmp.Diff(h.Config(), any(origins)); err != nil || diff != "" {
		t.Errorf("config: %v %s", err, diff)
	}
	problems, err := client.Problems(ctx)
	if diff := cmp.Diff(h.Problems(), problems); err != nil || diff != "" {
		t.Errorf("problems: %v %s", err, diff)
	}
	for _, repair := range []bool{false, true} {
		if found, err := client.Verify(ctx, repair); err != nil || found.Repair != repair || found.Services != 3 {
			t.Errorf("verify: %+v, %v", found, err)
		}
	}
	for _, name := range []string{"debug", "info", "warn", "error"} {
		if err := client.SetLogLevel(ctx, name); err != nil {
			t.Error(err)
		}
		if got, err := client.LogLevel(ctx); err != nil || got != name {
			t.Errorf("log level %q, %v, want %q", got, err, name)
		}
	}
	if h.LogLevel.Level() != slog.LevelError {
		t.Errorf("the agent logs at %s", h.LogLevel.Level())
	}
	if err := client.SetLogLevel(ctx, "loud"); err == nil || !strings.Contains(err.Error(), `unknown log level "loud"`) {
		t.Errorf("a level that does not exist: %v", err)
	}
}

func TestRequests(t *testing.T) {
	path := socket(t)
	stop := serve(t, path, handlers())
	defer stop()
	client := NewClient(path)
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "/v1/status", "", 200},
		{"GET", "/v1/problems", "", 200},
		{"POST", "/v1/status", "", 405},
		{"GET", "/v2/status", "", 404},
		{"GET", "/v1/verify", "", 200},
		{"POST", "/v1/verify", "", 200},
		{"DELETE", "/v1/verify", "", 405},
		{"PUT", "/v1/log-level", `{"level":"debug"}`, 200},
		{"PUT", "/v1/log-level", `{"levle":"debug"}`, 400},
		{"PUT", "/v1/log-level", `debug`, 400},
		{"PUT", "/v1/log-level", `{"level":"` + strings.Repeat("x", maxBody) + `"}`, 400},
		{"GET", "/debug/pprof/heap?debug=1", "", 200},
		{"GET", "/debug/pprof/cmdline", "", 200},
	} {
		request, err := http.NewRequestWithContext(t.Context(), tt.method, "http://agent"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != tt.want {
			t.Errorf("%s %s: %d %v, want %d: %s", tt.method, tt.path, response.StatusCode, err, tt.want, text)
		}
	}
}

func TestNoProblemsIsAList(t *testing.T) {
	h := handlers()
	h.Problems = func() []model.ObjectProblem { return nil }
	path := socket(t)
	stop := serve(t, path, h)
	defer stop()
	if problems, err := NewClient(path).Problems(t.Context()); err != nil || problems == nil {
		t.Errorf("problems: %v, %v", problems, err)
	}
}

func TestPermissions(t *testing.T) {
	path := socket(t)
	stop := serve(t, path, handlers())
	defer stop()
	for file, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", file, info.Mode().Perm(), want)
		}
	}
}

func TestDirectoryOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(filepath.Join(dir, "agent.sock"), handlers()); err == nil || !strings.Contains(err.Error(), "others may write") {
		t.Errorf("a directory that anybody may write to: %v", err)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	path := socket(t)
	stop := serve(t, path, handlers())
	if _, err := NewServer(path, handlers()); !errors.Is(err, ErrInUse) {
		t.Errorf("a second agent: %v", err)
	}
	if _, err := NewClient(path).Status(t.Context()); err != nil {
		t.Errorf("the refused agent broke the first: %v", err)
	}
	if alive, err := Alive(path); err != nil || !alive {
		t.Errorf("alive: %v, %v", alive, err)
	}
	stop()
	if alive, err := Alive(path); err != nil || alive {
		t.Errorf("alive after the end: %v, %v", alive, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	serve(t, path, handlers())()
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := socket(t)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{path, path + ".new"} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	if _, err := NewClient(path).Status(t.Context()); !isUnreachable(err) || !strings.Contains(err.Error(), "no agent answers") {
		t.Errorf("a socket without an agent: %v", err)
	}
	stop := serve(t, path, handlers())
	defer stop()
	if _, err := NewClient(path).Status(t.Context()); err != nil {
		t.Error(err)
	}
}

func isUnreachable(err error) bool {
	var unreachable *UnreachableError
	return errors.As(err, &unreachable)
}

func TestUnreachable(t *testing.T) {
	path := socket(t)
	if _, err := NewClient(path).Status(t.Context()); !isUnreachable(err) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	if alive, err := Alive(path); err != nil || alive {
		t.Errorf("alive without a socket: %v, %v", alive, err)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := silent.Accept(); err == nil {
			cancel()
			conn.Close()
		}
	}()
	if _, err := NewClient(path).Status(ctx); !isUnreachable(err) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("an agent that says nothing: %v", err)
	}
}

func TestVerifyThatFails(t *testing.T) {
	h := handlers()
	h.Verify = func(context.Context, bool) (observe.Verification, error) {
		return observe.Verification{}, errors.New("verify the maps: not yet")
	}
	path := socket(t)
	stop := serve(t, path, h)
	defer stop()
	_, err := NewClient(path).Verify(t.Context(), false)
	if err == nil || isUnreachable(err) || !strings.Contains(err.Error(), "verify the maps: not yet") {
		t.Errorf("%v", err)
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	h := handlers()
	h.Config = func() any { return func() {} } // cannot be encoded
	path := socket(t)
	stop := serve(t, path, h)
	defer stop()
	if _, err := NewClient(path).Config(t.Context()); err == nil || !strings.Contains(err.Error(), "encode answer") {
		t.Errorf("an answer that cannot be encoded: %v", err)
	}
}
