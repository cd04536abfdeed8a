// Package apiserver runs a real kube-apiserver with a real etcd for one test. Only they decide what
// a watch does after a restart, a compaction or a lost connection; a fake would behave differently.
//
// There are no controllers, no scheduler and no kubelet: objects stay as the test made them.
// Everything listens on loopback, lives in a directory of the test and ends with the test.
package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/rig"
)

const (
	// Of a user in system:masters; the server is on loopback and lives only as long as the test.
	token = "admin"

	// ServiceCIDRs are the ranges from which the server assigns cluster IPs.
	ServiceCIDRs = "10.96.0.0/16,fd96::/112"
	// startTimeout is long enough for a machine busy with other tests; an idle one needs a few
	// seconds.
	startTimeout = 2 * time.Minute
	// attemptTimeout bounds one question whether a program is ready: one that is asked while it starts may never answer.
	attemptTimeout = 10 * time.Second
)

// Server is a kube-apiserver and its etcd.
type Server struct {
	t       testing.TB
	set     *pinned.Set
	dir     string
	etcd    *process
	api     *process // nil while stopped
	etcdURL string
	host    string
	port    int
	log     string // path of the kube-apiserver's log
}

// Start starts a server and waits until it is ready. If the binaries are not built, it skips the
// test, or fails it where FAIRLEAD_REQUIRE asks for "apiserver".
func Start(t testing.TB) *Server {
	t.Helper()
	set, err := pinned.Find()
	if err != nil {
		t.Fatal(err)
	}
	if missing := set.Missing(); len(missing) > 0 {
		rig.Lacking(t, "apiserver", strings.Join(missing, " and ")+" must be built first: go run ./test/apiserver/build")
	}
	s := &Server{t: t, set: set, dir: t.TempDir()}
	s.listenAt(reservePort(t))
	s.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", reservePort(t))
	if err := s.writeCredentials(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last of etcd's log:\n%s\nthe last of kube-apiserver's log:\n%s", tail(s.path("etcd.log")), tail(s.log))
		}
	})
	s.startEtcd(fmt.Sprintf("http://127.0.0.1:%d", reservePort(t)))
	s.StartAPI()
	return s
}

// Another starts a second kube-apiserver with the certificate and the objects of the first, and
// waits until it is ready.
func (s *Server) Another() *Server {
	s.t.Helper()
	another := *s
	another.listenAt(reservePort(s.t))
	another.StartAPI()
	return &another
}

func (s *Server) listenAt(port int) {
	s.port, s.host = port, fmt.Sprintf("https://127.0.0.1:%d", port)
	s.log = s.path(fmt.Sprintf("apiserver-%d.log", port))
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// Config returns a new configuration of an administrator.
func (s *Server) Config() *rest.Config {
	return &rest.Config{
		Host:            s.host,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.path("apiserver.crt")},
		QPS:             -1, // the server limits the rate
	}
}

// Client returns a client of an administrator.
func (s *Server) Client() kubernetes.Interface {
	s.t.Helper()
	client, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// Kubeconfig writes a kubeconfig with which other processes reach the server, and returns its path.
func (s *Server) Kubeconfig() string {
	s.t.Helper()
	path := s.path("kubeconfig")
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`, s.host, s.path("apiserver.crt"), token)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *Server) startEtcd(peer string) {
	s.t.Helper()
	s.etcd = start(s.t, s.set.Etcd.Path, s.path("etcd.log"),
		"--data-dir="+s.path("etcd"), "--unsafe-no-fsync", "--log-level=warn", "--socket-reuse-port",
		"--listen-client-urls="+s.etcdURL, "--advertise-client-urls="+s.etcdURL,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	s.await(s.etcd, func(ctx context.Context) error {
		_, err := s.get(ctx, http.DefaultClient, s.etcdURL+"/health")
		return err
	})
}

// StartAPI starts the kube-apiserver again after StopAPI, on the same port, and waits until it is
// ready.
func (s *Server) StartAPI() {
	s.t.Helper()
	s.api = start(s.t, s.set.APIServer.Path, s.log,
		"--etcd-servers="+s.etcdURL, "--etcd-compaction-interval=0", // Compact compacts
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port), "--permit-port-sharing", "--cert-dir="+s.dir,
		// No client is told to connect to this address; setting it keeps the server from looking
		// for a default route.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range="+ServiceCIDRs, "--authorization-mode=RBAC",
		"--token-auth-file="+s.path("tokens.csv"),
		// Without controllers nothing creates the service account of a namespace, for which pods
		// would wait.
		"--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+s.path("account.key"), "--service-account-signing-key-file="+s.path("account.key"),
		"--allow-privileged=true", "--shutdown-delay-duration=0s")
	var client *http.Client
	s.await(s.api, func(ctx context.Context) error {
		if client == nil { // the certificate is among the first files that the server writes
			made, err := rest.HTTPClientFor(s.Config())
			if err != nil {
				return err
			}
			client = made
		}
		_, err := s.get(ctx, client, s.host+"/readyz")
		return err
	})
	client.CloseIdleConnections()
}

// StopAPI kills the kube-apiserver, as a crash would; etcd keeps running.
func (s *Server) StopAPI() {
	s.t.Helper()
	if s.api != nil {
		s.api.stop()
		s.api = nil
	}
}

// Compact makes etcd forget everything but the present. A watch that resumes from an earlier
// version then gets 410 Gone, unless the kube-apiserver's own cache still has what it missed:
// restart the server to be sure.
func (s *Server) Compact() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var status struct {
		Header struct {
			Revision json.Number `json:"revision"`
		} `json:"header"`
	}
	answer, err := s.post(ctx, "/v3/maintenance/status", map[string]any{})
	if err == nil {
		err = json.Unmarshal(answer, &status)
	}
	if err == nil {
		_, err = s.post(ctx, "/v3/kv/compaction", map[string]any{"revision": status.Header.Revision.String(), "physical": true})
	}
	if err != nil {
		s.t.Fatalf("compact etcd: %v", err)
	}
}

func (s *Server) post(ctx context.Context, path string, message any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.etcdURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return answer(http.DefaultClient, request)
}

func (s *Server) get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return answer(client, request)
}

func answer(client *http.Client, request *http.Request) ([]byte, error) {
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", request.URL.Path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", request.Method, request.URL.Path, response.Status, bytes.TrimSpace(body))
	}
	return body, nil
}

// await polls until the process answers without error, and fails the test if the process ends or
// takes too long.
func (s *Server) await(p *process, ask func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		attempt, done := context.WithTimeout(ctx, attemptTimeout)
		err := ask(attempt)
		done()
		if err == nil {
			return
		}
		select {
		case <-p.done:
			s.t.Fatalf("start %s: it ended: %v\n%s", p.name, p.err, tail(p.log))
		case <-ctx.Done():
			s.t.Fatalf("start %s: not ready after %v: %v\n%s", p.name, startTimeout, err, tail(p.log))
		case <-tick.C:
		}
	}
}
