package chart

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.io/fairlead/test/apiserver"
	"fairlead.io/fairlead/test/rig"
)

// The release of the Prometheus operator whose CRDs the server gets, and its checksum as in go.sum.
// It is no dependency in go.mod because the operator has some hundred dependencies and only its
// CRDs are needed.
const (
	operator    = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
	operatorSum = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
)

// teachOperator installs the CRDs of the Prometheus operator for which the chart has objects.
func teachOperator(t *testing.T, server *apiserver.Server) {
	t.Helper()
	client, err := dynamic.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(kinds.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	source := operatorSource(t)
	for _, plural := range []string{"podmonitors", "prometheusrules", "servicemonitors"} {
		content, err := os.ReadFile(filepath.Join(source, "example/prometheus-operator-crd/monitoring.coreos.com_"+plural+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		definition := &unstructured.Unstructured{}
		decode(t, string(content), &definition.Object)
		if _, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The server serves a kind some time after its CRD is created.
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			objects := client.Resource(kinds.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: plural})
			if _, err = objects.List(t.Context(), metav1.ListOptions{}); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the server does not serve %s: %v", plural, err)
			}
		}
	}
}

// operatorSource downloads the operator's source and returns its directory.
func operatorSource(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", operator).Output()
	var module struct{ Dir, Sum, Error string }
	if parse := json.Unmarshal(out, &module); parse != nil || err != nil {
		rig.Lacking(t, "prometheus", "fetch "+operator+": "+module.Error)
	}
	if module.Sum != operatorSum {
		t.Fatalf("%s has the checksum %s, want %s", operator, module.Sum, operatorSum)
	}
	return module.Dir
}
