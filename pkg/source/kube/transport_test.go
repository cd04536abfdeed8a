package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/apiserver"
)

// TestAnswers covers how an answer changes the status of a kind.
func TestAnswers(t *testing.T) {
	retry := http.Header{"Retry-After": []string{"1"}}
	for _, tt := range []struct {
		name     string
		before   string
		response *http.Response
		err      error
		watch    bool
		want     KindStatus // Error and Failures
	}{
		{name: "none", err: errors.New("gone"), want: KindStatus{Error: "gone", Failures: 1}},
		{name: "watch opened", before: "gone", response: &http.Response{StatusCode: 200}, watch: true},
		{name: "listed", before: "gone", response: &http.Response{StatusCode: 200}, want: KindStatus{Error: "gone"}},
		{name: "history forgotten", response: &http.Response{StatusCode: 410}, watch: true},
		{name: "overloaded", response: &http.Response{StatusCode: 429, Status: "429 Too Many Requests", Header: retry},
			want: KindStatus{Error: "429 Too Many Requests", Failures: 1}},
		{name: "refused, and the client tells why", response: &http.Response{StatusCode: 403}, want: KindStatus{Failures: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := state{kind: "services", log: slog.New(slog.DiscardHandler), is: KindStatus{Error: tt.before}}
			s.answered(tt.response, tt.err, tt.watch)
			if got := s.status(); got.Error != tt.want.Error || got.Failures != tt.want.Failures {
				t.Errorf("status %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestEndIsNoFailure checks that a request that is aborted because the agent ends is not a failure.
func TestEndIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	source, err := New(Config{
		REST: &rest.Config{Host: "https://127.0.0.1:1"}, NodeName: node, Store: model.NewStore(node), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for _, k := range source.Status().Kinds {
		if k.Error != "" || k.Failures != 0 {
			t.Errorf("status after the end: %+v", k)
		}
	}
}

// TestOutages covers what the status and the log say about a server that cannot be reached or
// rejects requests.
func TestOutages(t *testing.T) {
	server := apiserver.Start(t)
	for _, test := range []struct {
		name string
		run  func(*apiNamespace)
	}{
		{"nothing listens", func(w *apiNamespace) { testAway(w, refusing) }},
		{"connections are closed", func(w *apiNamespace) { testAway(w, closing) }},
		{"nothing answers", func(w *apiNamespace) { testAway(w, silent) }},
		{"no permission to watch", testNoWatch},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test.run(newAPINamespace(t, server))
		})
	}
}

// testAway checks that the status reports the outage as long as it lasts; the log reports its
// beginning and its end.
func testAway(w *apiNamespace, blocked func() (net.Conn, error)) {
	var log logBuffer
	var road road
	cfg := w.server.Config()
	cfg.Dial = road.dial
	w.replace(cfg, &log)
	w.createService("stays")
	w.follow()
	road.block(blocked)
	w.awaitOutage(true)
	w.await("several attempts", func() bool { return w.kind("services").Failures >= 4 })
	w.awaitOutage(true)
	road.open()
	w.awaitOutage(false)
	if begun, over := log.lines("cannot read", "kind=services"), log.lines("again", "kind=services"); begun != 1 || over != 1 {
		w.Errorf("the log reports %d beginnings and %d ends of one outage", begun, over)
	}
	if !w.has("stays") {
		w.Error("the outage emptied the store")
	}
}

// testNoWatch checks that an agent that may list but not watch reports that once, and does not
// report recovery after each list.
func testNoWatch(w *apiNamespace) {
	role := metav1.ObjectMeta{Name: "lister"}
	_, err := w.client.RbacV1().ClusterRoles().Create(w.ctx, &rbacv1.ClusterRole{ObjectMeta: role, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"list"}, APIGroups: []string{"", "discovery.k8s.io"},
		Resources: []string{"services", "endpointslices", "nodes", "namespaces", "pods"},
	}}}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.client.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: role,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "lister"}},
	}, metav1.CreateOptions{})
	w.must(err)
	w.createService("web")
	var log logBuffer
	cfg := w.server.Config()
	cfg.Impersonate.UserName = "lister"
	w.replace(cfg, &log)
	w.follow()
	w.await("several lists", func() bool { return w.kind("services").Relists >= 3 })
	if k := w.kind("services"); !w.has("web") || !strings.Contains(k.Error, "cannot watch") {
		w.Errorf("status without the permission to watch: %+v", k)
	}
	if begun, over := log.lines("cannot read", "kind=services"), log.lines("again", "kind=services"); begun != 1 || over != 0 {
		w.Errorf("the log reports %d beginnings and %d ends", begun, over)
	}
}

// replace gives the namespace another Source, with another connection to the server and a log to look
// at.
func (w *apiNamespace) replace(cfg *rest.Config, log io.Writer) {
	w.Helper()
	source, err := New(Config{REST: cfg, NodeName: node, Store: w.store, Log: slog.New(slog.NewTextHandler(log, nil))})
	w.must(err)
	w.source = source
}

// logBuffer collects log lines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to the log.
func (b *logBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

// lines returns how many lines contain all the words.
func (b *logBuffer) lines(words ...string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for line := range strings.Lines(b.text.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			n++
		}
	}
	return n
}

// road is a connection to the server that can be blocked in several ways.
type road struct {
	mu      sync.Mutex
	blocked func() (net.Conn, error) // what a dial returns; nil while open
	conns   []net.Conn
}

func (r *road) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocked != nil {
		return r.blocked()
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		r.conns = append(r.conns, conn)
	}
	return conn, err
}

func (r *road) block(by func() (net.Conn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = by
	for _, conn := range r.conns {
		conn.Close()
	}
	r.conns = nil
}

func (r *road) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = nil
}

// refusing is a machine on which nothing listens.
func refusing() (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// closing is a load balancer without a server behind it.
func closing() (net.Conn, error) { return deadConn{err: io.EOF}, nil }

// silent is a machine that is gone. The dial times out at once, to save time.
func silent() (net.Conn, error) { return deadConn{err: os.ErrDeadlineExceeded}, nil }

// deadConn is a connection that accepts everything and answers nothing.
type deadConn struct {
	net.Conn // nil
	err      error
}

func (c deadConn) Read([]byte) (int, error)         { return 0, c.err }
func (c deadConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c deadConn) Close() error                     { return nil }
func (c deadConn) SetDeadline(time.Time) error      { return nil }
func (c deadConn) SetReadDeadline(time.Time) error  { return nil }
func (c deadConn) SetWriteDeadline(time.Time) error { return nil }
func (c deadConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c deadConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
