package kube

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

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
		{"", "--kubeconfig is not set"},
	} {
		_, err := New(Config{Kubeconfig: test.kubeconfig, NodeName: node, Store: model.NewStore(node), Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("kubeconfig %q: error %v, want one with %q", test.kubeconfig, err, test.want)
		}
	}
}

// testKubeconfig reaches the same server through a kubeconfig file.
func testKubeconfig(w *apiNamespace) {
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

// TestPodsOnly checks that with PodsOnly, the Source asks for nothing but pods and namespaces, and
// does not wait for what it does not ask for.
func TestPodsOnly(t *testing.T) {
	store := model.NewStore(node)
	source, err := New(Config{
		REST: &rest.Config{Host: "127.0.0.1:1"}, NodeName: node, Accelerations: true, PodsOnly: true, Store: store, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, k := range source.Status().Kinds {
		asked = append(asked, k.Kind)
	}
	if want := []string{"namespaces", "pods", "socketaccelerations"}; !slices.Equal(asked, want) {
		t.Errorf("it asks for %q, want %q", asked, want)
	}
	if missing := store.Unsynced(); !slices.Equal(missing, []string{"namespaces", "pods"}) {
		t.Errorf("it waits for %q", missing)
	}
}
