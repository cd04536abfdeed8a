package kube

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

func TestNewErrors(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("clusters: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, test := range []struct{ kubeconfig, want string }{
		{"/nonexistent/kubeconfig", "read kubeconfig /nonexistent/kubeconfig: "},
		{broken, "read kubeconfig " + broken + ": "},
		{"", "--kubeconfig is not given"},
	} {
		_, err := New(Config{Kubeconfig: test.kubeconfig, NodeName: node, Store: model.NewStore(node), Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("kubeconfig %q: error %v, want one with %q", test.kubeconfig, err, test.want)
		}
	}
}

// A file leads to the same server as the test's own configuration.
func testKubeconfig(w *world) {
	w.createService("web")
	var err error
	w.source, err = New(Config{
		Kubeconfig: w.server.Kubeconfig(), NodeName: node, Store: w.store, Log: slog.New(slog.DiscardHandler),
	})
	w.must(err)
	w.follow()
	if !w.has("web") {
		w.Error("synced without the service")
	}
}
