package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tagged returns the options for a release of small programs whose commit has a tag, if any.
func tagged(t *testing.T, tag string) options {
	t.Helper()
	dir := source(t, true)
	if tag != "" {
		if out, err := exec.Command("git", "-C", dir, "tag", tag).CombinedOutput(); err != nil {
			t.Fatalf("git tag: %v\n%s", err, out)
		}
	}
	root := t.TempDir()
	for name, content := range map[string]string{
		license:   "a license\n",
		manifest:  "image: fairlead.io/fairlead:v0.0.0\n",
		changelog: "# Changelog\n\n## v1.2.4 - 2026-02-01\n\n- later\n\n## v1.2.3 - 2026-01-02\n\n- first\n- second\n\n## v1.2.2\n\n- older\n\n## v1.2.1\n",
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return options{output: filepath.Join(t.TempDir(), "release"), arches: []string{"amd64"}, built: programs(t, dir, "amd64"), root: root, chart: theChart}
}

// A release has everything under its version, the sums fit, and the same commit gives the same bytes.
func TestRelease(t *testing.T) {
	var all []string
	for range 2 {
		o := tagged(t, "v1.2.3")
		if err := release(o); err != nil {
			t.Fatal(err)
		}
		have := map[string]string{}
		entries, err := os.ReadDir(o.output)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(o.output, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			names, have[e.Name()] = append(names, e.Name()), string(content)
		}
		want := []string{
			"SHA256SUMS", "fairlead-1.2.3.tgz", "fairlead-v1.2.3-image.tar", "fairlead-v1.2.3-linux-amd64.spdx.json",
			"fairlead-v1.2.3-linux-amd64.tar.gz", "fairlead.yaml", "notes.md",
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("files (-want +have):\n%s", diff)
		}
		if have["notes.md"] != "- first\n- second\n" || have["fairlead.yaml"] != "image: fairlead.io/fairlead:v1.2.3\n" {
			t.Errorf("notes %q, manifest %q", have["notes.md"], have["fairlead.yaml"])
		}
		if diff := cmp.Diff([]string{"fairlead 755", "fairlead-cni 755", "LICENSE 644"}, packed(t, have["fairlead-v1.2.3-linux-amd64.tar.gz"])); diff != "" {
			t.Errorf("programs (-want +have):\n%s", diff)
		}
		check := exec.Command("sha256sum", "--check", "--strict", "--quiet", sums)
		check.Dir = o.output
		if out, err := check.CombinedOutput(); err != nil || strings.Count(have[sums], "\n") != len(want)-1 {
			t.Errorf("the sums do not fit: %v\n%s%s", err, out, have[sums])
		}
		all = append(all, have[sums])
	}
	if all[0] != all[1] {
		t.Errorf("the same commit gave two releases:\n%s\n%s", all[0], all[1])
	}
}

// packed lists an archive of programs.
func packed(t *testing.T, content string) []string {
	t.Helper()
	unpacked, err := gzip.NewReader(bytes.NewReader([]byte(content)))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for archive := tar.NewReader(unpacked); ; {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%s %o", entry.Name, entry.Mode))
	}
}

// What is no release is refused, and leaves nothing that could be taken for one.
func TestReleaseRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		tag, says string
		spoil     func(o options) error
	}{
		"no tag":     {says: "which is no release"},
		"no version": {tag: "nightly", says: "which is no release"},
		"no section": {tag: "v1.2.9", says: `has no section "## v1.2.9"`},
		"no notes":   {tag: "v1.2.1", says: `has no section "## v1.2.1", or an empty one`},
		"no image":   {tag: "v1.2.3", says: "does not name the image", spoil: func(o options) error { return os.WriteFile(filepath.Join(o.root, manifest), nil, 0o644) }},
		"no license": {tag: "v1.2.3", says: license, spoil: func(o options) error { return os.Remove(filepath.Join(o.root, license)) }},
		"exists":     {tag: "v1.2.3", says: "remove it first", spoil: func(o options) error { return os.Mkdir(o.output, 0o755) }},
	} {
		t.Run(name, func(t *testing.T) {
			o := tagged(t, c.tag)
			if c.spoil != nil {
				if err := c.spoil(o); err != nil {
					t.Fatal(err)
				}
			}
			if err := release(o); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
			left, err := filepath.Glob(filepath.Join(filepath.Dir(o.output), "*", "*"))
			unfinished, other := filepath.Glob(o.output + ".unfinished")
			if err != nil || other != nil || len(slices.Concat(left, unfinished)) > 0 {
				t.Errorf("left behind: %q %q, %v %v", left, unfinished, err, other)
			}
		})
	}
}
