// Package chart renders charts/fairlead with helm itself, and checks the result against what the
// agent and Kubernetes accept.
package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const folder = "../../charts/fairlead"

// helm returns the path of the helm program of a module in test/tools, which is built once and kept
// in Go's build cache.
func helm(module string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		cmd := exec.Command("go", "tool", "-n", "-modfile=../tools/"+module+"/go.mod", "helm")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("build helm: %w\n%s", err, &stderr)
		}
		return strings.TrimSpace(string(out)), nil
	})
}

var helm4, helm3 = helm("helm"), helm("helm3")

// run runs helm with its own home directory, and returns its output, or what it complains about.
func run(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return runBy(t, helm4, args...)
}

func runBy(t testing.TB, helm func() (string, error), args ...string) (string, error) {
	t.Helper()
	path, err := helm()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", errors.Join(errors.New(stderr.String()), err)
	}
	return stdout.String(), nil
}

// values are the values that a user sets.
type values = map[string]any

// at returns values with one value set, at a dotted path.
func at(path string, value any) values {
	names := strings.Split(path, ".")
	for i := len(names) - 1; i > 0; i-- {
		value = values{names[i]: value}
	}
	return values{names[0]: value}
}

// template renders the chart with an API server address set. Later values override earlier ones.
func template(t testing.TB, given ...values) (string, error) {
	t.Helper()
	return templateBy(t, helm4, given...)
}

func templateBy(t testing.TB, helm func() (string, error), given ...values) (string, error) {
	t.Helper()
	// The version is what a release of helm takes by itself; one built here does not know any.
	args := []string{"template", "fairlead", folder, "--namespace=kube-system", "--kube-version=1.36.0"}
	for _, v := range append([]values{at("k8sServiceHost", "192.0.2.1")}, given...) {
		content, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--values="+file)
	}
	return runBy(t, helm, args...)
}

func mustTemplate(t testing.TB, given ...values) string {
	t.Helper()
	text, err := template(t, given...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// manifest is one document that the chart renders.
type manifest struct {
	file   string // the template it comes from
	object runtime.Object
	text   string
}

// manifests decodes what the chart renders, and fails on fields that the kind does not have.
func manifests(t testing.TB, text string) (all []manifest) {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		head, body, _ := strings.Cut(document, "\n")
		file, ok := strings.CutPrefix(head, "# Source: fairlead/templates/")
		if !ok {
			t.Fatalf("a document without a source:\n%s", document)
		}
		object, _, err := decoder.Decode([]byte(body), nil, nil)
		if err != nil && !runtime.IsNotRegisteredError(err) {
			t.Fatalf("%s: %v\n%s", file, err, body)
		}
		all = append(all, manifest{file, object, body})
	}
	return all
}

// the returns the only object of a type.
func the[T runtime.Object](t testing.TB, all []manifest) T {
	t.Helper()
	var found []T
	for _, m := range all {
		if object, ok := m.object.(T); ok {
			found = append(found, object)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of %T", len(found), *new(T))
	}
	return found[0]
}

func render(t testing.TB, given ...values) []manifest {
	t.Helper()
	return manifests(t, mustTemplate(t, given...))
}

func TestLint(t *testing.T) {
	t.Parallel()
	if out, err := run(t, "lint", "--strict", "--set=k8sServiceHost=192.0.2.1", folder); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Helm 3, which many users have, makes the same of the chart as helm 4, except for empty lines, and
// refuses the same, although it words what breaks the schema in its own way.
func TestHelm3(t *testing.T) {
	t.Parallel()
	if version, err := runBy(t, helm3, "version", "--short"); err != nil || !strings.HasPrefix(version, "v3.") {
		t.Fatalf("helm's version is %q, %v", version, err)
	}
	if out, err := runBy(t, helm3, "lint", "--strict", "--kube-version=1.36.0", "--set=k8sServiceHost=192.0.2.1", folder); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	empty := regexp.MustCompile(`\n+`)
	for name, given := range map[string]values{
		"defaults":                    nil,
		"everything":                  {"metrics": values{"serviceMonitor": values{"enabled": true}, "prometheusRule": values{"enabled": true}, "address": ":10249"}, "dashboards": values{"enabled": true}, "bandwidthManager": values{"enabled": true, "bbr": true}, "sockmap": values{"enabled": true}, "bigTCP": true},
		"chained":                     at("podNetwork", "chained"),
		"accelerate only":             at("mode", "accelerate-only"),
		"refused: no nodes are known": at("cleanup", true),
		"taken back":                  {"nodePort": values{"range": nil}, "conntrack": nil},
		"refused: snat":               at("loadBalancer.mode", "hybrid"),
		"refused: loadbalancer":       at("loadbalancer", values{}),
		"refused: bandwidthManager.enabled: true": at("bandwidthManager.bbr", true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, wantErr := template(t, given)
			have, err := templateBy(t, helm3, given)
			if diff := cmp.Diff(empty.ReplaceAllString(want, "\n"), empty.ReplaceAllString(have, "\n")); diff != "" {
				t.Errorf("-helm 4 +helm 3:\n%s", diff)
			}
			_, says, refused := strings.Cut(name, "refused: ")
			if (err != nil) != refused || (wantErr != nil) != refused ||
				refused && !(strings.Contains(err.Error(), says) && strings.Contains(wantErr.Error(), says)) {
				t.Errorf("helm 3: %v\nhelm 4: %v", err, wantErr)
			}
		})
	}
}

func typeOf(object runtime.Object) string { return fmt.Sprintf("%T", object) }

func decode(t testing.TB, text string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}
