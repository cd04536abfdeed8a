package chart

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var update = flag.Bool("update", false, "rewrite what is generated from the chart")

// hold compares a file with what it should be generated as.
func hold(t *testing.T, path, want string) {
	t.Helper()
	path = filepath.Join("..", "..", filepath.FromSlash(path))
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./test/chart -update", err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is out of date (-want +have); rewrite it with: go test ./test/chart -update\n%s", path, diff)
	}
}

const generated = "# Generated from charts/fairlead: go test ./test/chart -update\n"

// roleOf returns the ClusterRole as text.
func roleOf(t *testing.T, all []manifest) string {
	t.Helper()
	role := the[*rbacv1.ClusterRole](t, ofAgent(all))
	for _, m := range all {
		if m.object == runtime.Object(role) {
			return strings.TrimSpace(m.text) + "\n"
		}
	}
	return ""
}

// The manifests for use without helm match the chart.
func TestManifests(t *testing.T) {
	t.Parallel()
	all := render(t, at("k8sServiceHost", "API-SERVER"))
	// Labels that only helm needs.
	marks := regexp.MustCompile(`(?m)^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n`)
	static := func(files ...string) (text string) {
		for _, m := range all {
			if slices.Contains(files, m.file) {
				text += "---\n" + strings.TrimSpace(marks.ReplaceAllString(m.text, "")) + "\n"
			}
		}
		return strings.TrimPrefix(text, "---\n")
	}
	hold(t, "deploy/kubernetes/rbac.yaml", generated+static("serviceaccount.yaml", "rbac.yaml", "controller-rbac.yaml"))
	definition, err := os.ReadFile(filepath.Join(folder, "crds", "socketaccelerations.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hold(t, "deploy/kubernetes/socketaccelerations.yaml", generated+"# For agents with the option sockmap set to true: the policies, and the right to read them.\n"+
		strings.TrimSpace(string(definition))+"\n---\n"+marks.ReplaceAllString(roleOf(t, render(t, at("sockmap.enabled", true))), ""))
	hold(t, "deploy/kubernetes/fairlead.yaml", generated+`# Replace API-SERVER with an address of the API server that every node reaches, 6443 with its port, and fairlead.io/fairlead:v0.0.0,
# which names no version, with the image that the nodes should run:
#
#     sed 's/API-SERVER/192.0.2.1/; s/fairlead:v0.0.0/fairlead:v1.2.3/' fairlead.yaml | kubectl apply -f -
#
# Deleting it leaves the programs, the maps and the plugin on the nodes: deploy/README.md says how to clean them.
`+static("serviceaccount.yaml", "configmap.yaml", "rbac.yaml", "controller-rbac.yaml", "daemonset.yaml", "controller.yaml"))
}
