package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	packer "fairlead.io/fairlead/deploy/image/chart"
)

// The chart that make image writes installs that image without further values, and otherwise equals
// the chart of the tree.
func TestPackage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ image, version, wantVersion string }{
		{"fairlead.io/fairlead:v0.0.0-20261123054525-4139f2b68323", "v0.0.0-20261123054525-4139f2b68323", "0.0.0-20261123054525-4139f2b68323"},
		{"registry.example:5000/net/fairlead:v1.2.3-dirty", "v1.2.3+dirty", "1.2.3+dirty"},
	} {
		packed, err := packer.Package(os.DirFS(folder), packer.Image{Name: tt.image, Version: tt.version, Time: time.Unix(1, 0)})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "fairlead-chart.tgz")
		if err := os.WriteFile(file, packed, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := run(t, "lint", "--strict", "--set=k8sServiceHost=192.0.2.1", file); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		shown, err := run(t, "show", "chart", file)
		if err != nil {
			t.Fatal(err)
		}
		_, tag, _ := strings.Cut(filepath.Base(tt.image), ":")
		var is struct{ Version, AppVersion string }
		if err := yaml.Unmarshal([]byte(shown), &is); err != nil || is.Version != tt.wantVersion || is.AppVersion != tag {
			t.Errorf("%s: the packaged chart is %+v, %v", tt.image, is, err)
		}
		text, err := run(t, "template", "fairlead", file, "--namespace=kube-system", "--set=k8sServiceHost=192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		images := regexp.MustCompile(`(?m)^ +image: (.*)$`)
		found := images.FindAllStringSubmatch(text, -1)
		for _, m := range found {
			if m[1] != tt.image {
				t.Errorf("the chart installs %s, want %s", m[1], tt.image)
			}
		}
		if len(found) != 4 {
			t.Errorf("%d containers have an image", len(found))
		}
		versions := regexp.MustCompile(`(?m)^ +(image|helm\.sh/chart|app\.kubernetes\.io/version): .*$`)
		if diff := cmp.Diff(versions.ReplaceAllString(mustTemplate(t), ""), versions.ReplaceAllString(text, "")); diff != "" {
			t.Errorf("%s: other differences (-tree +package):\n%s", tt.image, diff)
		}
	}
}

func TestPackageOfNothing(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{"fairlead": "has no tag", "a:5000/b": "has no tag", "a@sha256:00": "has no tag", "a:b@sha256:00": "has no tag", "a:b": "it lacks one of"} {
		if _, err := packer.Package(os.DirFS(t.TempDir()), packer.Image{Name: name}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", name, err, says)
		}
	}
}

// Installing as the documentation says gets an image that exists: each command uses a chart that
// make image wrote, or names the image.
func TestInstallAsDocumented(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range append(paths, "../../README.md", "../../deploy/README.md", "../../charts/fairlead/README.md") {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// A backslash continues a command on the next line.
		for line := range strings.Lines(strings.ReplaceAll(string(content), "\\\n", " ")) {
			if !regexp.MustCompile(`^ +helm (install|upgrade) `).MatchString(line) {
				continue
			}
			found++
			if !strings.Contains(line, "fairlead-chart.tgz") && !strings.Contains(line, "image.tag=") {
				t.Errorf("%s: the command does not say which image to install: %s", path, strings.TrimSpace(line))
			}
		}
	}
	if found < 5 {
		t.Errorf("found only %d commands", found)
	}
}
