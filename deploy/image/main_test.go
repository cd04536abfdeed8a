package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// source writes the source of small programs with the names of ours, in a repository if there is to
// be a commit, and returns its directory.
func source(t *testing.T, commit bool) string {
	t.Helper()
	dir := t.TempDir()
	small := "package main\n\nimport _ \"net\"\n\nfunc main() { println(\"small\") }\n"
	files := map[string]string{"go.mod": "module fairlead.io/fairlead\n"}
	for _, name := range names() {
		files["cmd/"+name+"/main.go"] = small
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "--message=a"}} {
		if !commit {
			break
		}
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
	}
	return dir
}

// programs builds the small programs as an image has them, and returns the directory above them.
func programs(t *testing.T, source, arch string) string {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	defer os.Chdir(here)
	if err := os.Chdir(source); err != nil {
		t.Fatal(err)
	}
	built := t.TempDir()
	if err := build(t.Context(), filepath.Join(built, arch), arch); err != nil {
		t.Fatal(err)
	}
	return built
}

const theChart = "../../charts/fairlead"

// The same commit gives the same image and the same chart, whoever builds it and wherever.
func TestWrite(t *testing.T) {
	var digests, charts []string
	for range 2 {
		o := options{output: t.TempDir(), arches: []string{"amd64"}, built: programs(t, source(t, true), "amd64"), chart: theChart}
		made, err := write(o)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(made.name, "fairlead.io/fairlead:v0.0.0-20260102030405-") || len(made.arches) != 1 || made.arches[0].unpacked < made.arches[0].carried {
			t.Errorf("write returned %+v", made)
		}
		packed, err := os.ReadFile(made.chart)
		if err != nil {
			t.Fatal(err)
		}
		digests, charts = append(digests, made.digest), append(charts, string(packed))
		left, err := filepath.Glob(filepath.Join(o.output, ".*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
		checkBill(t, filepath.Join(o.output, "fairlead-amd64.spdx.json"))
		checkFiles(t, made.path)
	}
	if digests[0] != digests[1] || !strings.HasPrefix(digests[0], "sha256:") {
		t.Errorf("the same commit gave the images %q", digests)
	}
	if charts[0] != charts[1] {
		t.Error("the same commit gave two charts")
	}
}

// So do the real programs, whose modules and data may hold what the small ones do not. It takes two
// clones of the tree's commit, in directories with names of different lengths. The second clone finds
// the compiled packages of the first in Go's cache; it links them anew.
func TestWriteReal(t *testing.T) {
	var digests []string
	for _, name := range []string{"a", "another"} {
		clone := filepath.Join(t.TempDir(), name)
		if out, err := exec.Command("git", "clone", "--quiet", "--no-hardlinks", "../..", clone).CombinedOutput(); err != nil {
			t.Fatalf("clone this tree: %v\n%s", err, out)
		}
		arch := runtime.GOARCH
		made, err := write(options{output: t.TempDir(), arches: []string{arch}, built: programs(t, clone, arch), chart: filepath.Join(clone, "charts/fairlead")})
		if err != nil {
			t.Fatal(err)
		}
		checkFiles(t, made.path)
		digests = append(digests, made.digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("the same commit gave the images %q", digests)
	}
}

// checkFiles checks the only layer of an image: it has the two programs, executable by everyone,
// and nothing else.
func checkFiles(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var have []string
	layers := 0
	for archive := tar.NewReader(file); ; {
		blob, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(filepath.Dir(blob.Name)) != "sha256" {
			continue
		}
		unpacked, err := gzip.NewReader(archive)
		if err != nil { // this blob is JSON
			continue
		}
		layers++
		for layer := tar.NewReader(unpacked); ; {
			entry, err := layer.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			have = append(have, fmt.Sprintf("%c %s %o of %d:%d at %d", entry.Typeflag, entry.Name, entry.Mode, entry.Uid, entry.Gid, entry.ModTime.Unix()))
		}
	}
	want := []string{"0 fairlead 755 of 0:0 at 0", "0 fairlead-cni 755 of 0:0 at 0"}
	if diff := cmp.Diff(want, have); diff != "" || layers != 1 {
		t.Errorf("%d layers (-want +have):\n%s", layers, diff)
	}
}

// An image says what it is and which commit it is from; without a repository it claims no commit.
func TestLabels(t *testing.T) {
	of := func(version string, settings ...debug.BuildSetting) map[string]string {
		return labelsOf(&program{info: &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}})
	}
	want := map[string]string{
		"org.opencontainers.image.title":       "fairlead",
		"org.opencontainers.image.description": "Kubernetes datapath: Services and the pod network by BPF, without kube-proxy",
		"org.opencontainers.image.licenses":    "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
		"org.opencontainers.image.version":     "v0.0.0",
		"org.opencontainers.image.base.name":   "scratch",
	}
	if diff := cmp.Diff(want, of("(devel)")); diff != "" {
		t.Errorf("without a repository (-want +have):\n%s", diff)
	}
	want["org.opencontainers.image.version"] = "v1.2.3"
	want["org.opencontainers.image.revision"] = "4139f2b6"
	want["org.opencontainers.image.created"] = "2026-01-02T03:04:05Z"
	have := of("v1.2.3", debug.BuildSetting{Key: "vcs.revision", Value: "4139f2b6"}, debug.BuildSetting{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"})
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("of a commit (-want +have):\n%s", diff)
	}
}

// checkBill checks that the bill describes each program and lists its dependencies as the linker
// recorded them.
func checkBill(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bill
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{b.ID: true}
	for _, c := range b.Packages {
		ids[c.ID] = true
	}
	kinds := map[string]int{}
	for _, r := range b.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("%v refers to a component that does not exist", r)
		}
		kinds[r.Type]++
	}
	if len(b.Packages) != 3 || kinds["DESCRIBES"] != 2 || kinds["DEPENDS_ON"] != 2 || len(b.Packages[0].Checksums[0].Value) != 64 {
		t.Errorf("the bill has %v, %v", b.Packages, b.Relationships)
	}
}

func TestRefusals(t *testing.T) {
	small := programs(t, source(t, false), "amd64")
	for name, c := range map[string]struct {
		built, arch, says string
		spoil             func(path string) error
	}{
		"no program":       {arch: "amd64", says: "open a program", spoil: os.Remove},
		"no ELF":           {arch: "amd64", says: "read ", spoil: func(path string) error { return os.WriteFile(path, []byte("#!/bin/sh"), 0o755) }},
		"too big":          {arch: "amd64", says: "may have 60000000", spoil: func(path string) error { return os.Truncate(path, limit) }},
		"another machine":  {arch: "arm64", says: "is for amd64, not for arm64"},
		"linked to others": {arch: "amd64", says: "is not linked statically", built: "sh"},
	} {
		t.Run(name, func(t *testing.T) {
			built := t.TempDir()
			for _, program := range names() {
				from := filepath.Join(small, "amd64", program)
				if c.built != "" {
					path, err := exec.LookPath(c.built)
					if err != nil {
						t.Fatal(err)
					}
					from = path
				}
				content, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				to := filepath.Join(built, c.arch, program)
				if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to, content, 0o755); err != nil {
					t.Fatal(err)
				}
				if c.spoil != nil {
					if err := c.spoil(to); err != nil {
						t.Fatal(err)
					}
				}
			}
			output := t.TempDir()
			_, err := write(options{output: output, arches: []string{c.arch}, built: built, chart: theChart})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
			if _, err := os.Stat(filepath.Join(output, "fairlead.tar")); !os.IsNotExist(err) {
				t.Errorf("there is an archive: %v", err)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	if err := run(t.Context(), []string{"amd64"}); err == nil || !strings.Contains(err.Error(), "is no option") {
		t.Errorf("error %v", err)
	}
	if err := run(t.Context(), []string{"-arch=pdp11", "-output=" + t.TempDir()}); err == nil || !strings.Contains(err.Error(), "build the programs for pdp11") {
		t.Errorf("error %v", err)
	}
	if err := run(t.Context(), []string{"-name=registry.example:5000/fairlead"}); err == nil || !strings.Contains(err.Error(), "has no tag") {
		t.Errorf("error %v", err)
	}
	for version, want := range map[string]string{"v1.2.3": "v1.2.3", "v0.0.0-2026-abc+dirty": "v0.0.0-2026-abc-dirty"} {
		if is := tag(version); is != want {
			t.Errorf("the tag of %s is %s, want %s", version, is, want)
		}
	}
}
