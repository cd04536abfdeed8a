package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// programs builds small ones that are called like ours, and returns the directory above them.
func programs(t *testing.T, arch string) string {
	t.Helper()
	source, built := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"go.mod":  "module fairlead.io/fairlead\n",
		"main.go": "package main\n\nimport _ \"net\"\n\nfunc main() { println(\"small\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names() {
		cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(built, arch, name), ".")
		cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return built
}

func TestWrite(t *testing.T) {
	built := programs(t, "amd64")
	var digests []string
	for range 2 {
		o := options{output: t.TempDir(), arches: []string{"amd64"}, built: built}
		made, err := write(o)
		if err != nil {
			t.Fatal(err)
		}
		if made.name != "fairlead.io/fairlead:v0.0.0" || len(made.arches) != 1 || made.arches[0].unpacked < made.arches[0].carried {
			t.Errorf("it made %+v", made)
		}
		digests = append(digests, made.digest)
		left, err := filepath.Glob(filepath.Join(o.output, ".*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
		checkBill(t, filepath.Join(o.output, "fairlead-amd64.spdx.json"))
	}
	if digests[0] != digests[1] || !strings.HasPrefix(digests[0], "sha256:") {
		t.Errorf("the same programs gave the images %q", digests)
	}
}

// Each program is described, and depends on what the linker says.
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
			t.Errorf("%v is between what is not there", r)
		}
		kinds[r.Type]++
	}
	if len(b.Packages) != 3 || kinds["DESCRIBES"] != 2 || kinds["DEPENDS_ON"] != 2 || len(b.Packages[0].Checksums[0].Value) != 64 {
		t.Errorf("the bill has %v, %v", b.Packages, b.Relationships)
	}
}

func TestRefusals(t *testing.T) {
	small := programs(t, "amd64")
	for name, c := range map[string]struct {
		built, arch, says string
		spoil             func(path string) error
	}{
		"no program":       {arch: "amd64", says: "open a program", spoil: os.Remove},
		"no ELF":           {arch: "amd64", says: "read ", spoil: func(path string) error { return os.WriteFile(path, []byte("#!/bin/sh"), 0o755) }},
		"too big":          {arch: "amd64", says: "may have", spoil: func(path string) error { return os.Truncate(path, limit) }},
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
			_, err := write(options{output: output, arches: []string{c.arch}, built: built})
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
	for version, want := range map[string]string{"v1.2.3": "v1.2.3", "v0.0.0-2026-abc+dirty": "v0.0.0-2026-abc-dirty"} {
		if is := tag(version); is != want {
			t.Errorf("the tag of %s is %s, want %s", version, is, want)
		}
	}
}
