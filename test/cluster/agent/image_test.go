package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// buildProgram builds a program that is linked statically.
func buildProgram(t *testing.T, dir, text string) string {
	t.Helper()
	source, path := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\""+text+"\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", path, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestImageIsReproducible(t *testing.T) {
	dir := t.TempDir()
	program := buildProgram(t, dir, "one")
	var names, archives []string
	for _, file := range []string{"a.tar", "b.tar"} {
		path := filepath.Join(dir, file)
		name, err := writeImage(path, program, program)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		names, archives = append(names, name), append(archives, string(content))
	}
	if archives[0] != archives[1] || names[0] != names[1] {
		t.Errorf("the same program gave two images: %q, %d and %d bytes", names, len(archives[0]), len(archives[1]))
	}
	two := buildProgram(t, t.TempDir(), "two")
	for _, programs := range [][2]string{{two, program}, {program, two}} {
		other, err := writeImage(filepath.Join(dir, "c.tar"), programs[0], programs[1])
		if err != nil {
			t.Fatal(err)
		}
		if other == names[0] {
			t.Errorf("another program gave the same name, %s", other)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestImageHoldsTheProgramsAlone(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "agent.tar")
	agent, plugin := buildProgram(t, dir, "one"), buildProgram(t, t.TempDir(), "two")
	name, err := writeImage(archive, agent, plugin)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	blobs := readTar(t, content)
	type descriptor struct {
		Digest      string
		Annotations map[string]string
	}
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	parse(t, blobs["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != name {
		t.Fatalf("index: %+v, want %s", index, name)
	}
	blob := func(d descriptor) []byte {
		content := blobs["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if sum := sha256.Sum256(content); "sha256:"+hex.EncodeToString(sum[:]) != d.Digest {
			t.Fatalf("blob %s: has another digest", d.Digest)
		}
		return content
	}
	parse(t, blob(index.Manifests[0]), &manifest)
	files := map[string]string{}
	for _, layer := range manifest.Layers {
		for name, content := range readTar(t, blob(layer)) {
			files[name] = string(content)
		}
	}
	want := map[string]string{}
	for name, path := range map[string]string{"fairlead": agent, "fairlead-cni": plugin} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want[name] = string(content)
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error("the image holds more or less than the programs")
	}
}

func parse(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%v: %q", err, content)
	}
}

func readTar(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProgramsThatWouldNotStart(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	shared, err := exec.LookPath("ls") // every distribution links it with its C library
	if err != nil {
		t.Skip("not run: this machine has no ls")
	}
	program := buildProgram(t, t.TempDir(), "one")
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "make build", script: "read " + script, shared: "CGO_ENABLED=0",
	} {
		archive := filepath.Join(dir, "agent.tar")
		for _, programs := range [][2]string{{path, program}, {program, path}} {
			if _, err := writeImage(archive, programs[0], programs[1]); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", path, err, want)
			}
		}
		if _, err := os.Stat(archive); err == nil {
			t.Errorf("%s: an archive was written", path)
		}
	}
}
