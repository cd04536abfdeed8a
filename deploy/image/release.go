package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	changelog = "docs/changelog.md"
	manifest  = "deploy/kubernetes/fairlead.yaml"
	license   = "LICENSE"
	sums      = "SHA256SUMS"
)

var (
	released = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
	// unreleased matches what Go calls a commit without a tag.
	unreleased = regexp.MustCompile(`[-.][0-9]{14}-[0-9a-f]{12}$`)
	section    = regexp.MustCompile(`(?m)^## (\S+).*$`)
)

// release makes a release: the image, the chart and the bills of materials under names with the
// version, the programs as archives, the manifest, the notes, and the sums of all files. The directory
// gets its name only once it is complete.
func release(o options) error {
	final := o.output
	if _, err := os.Stat(final); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s exists (%w): remove it first", final, cmp.Or(err, os.ErrExist))
	}
	o.output = final + ".unfinished"
	if err := os.RemoveAll(o.output); err != nil {
		return err
	}
	m, err := write(o)
	if err != nil {
		return err
	}
	if err := complete(o, m); err != nil {
		return errors.Join(err, os.RemoveAll(o.output))
	}
	fmt.Printf("%s\n%s\n%s\n", final, m.name, m.digest)
	return os.Rename(o.output, final)
}

// complete makes a release of what was written for the image.
func complete(o options, m made) error {
	if !released.MatchString(m.version) || unreleased.MatchString(m.version) {
		return fmt.Errorf("this commit is %s, which is no release: commit everything, and tag the commit, as in git tag v1.2.3", m.version)
	}
	notes, err := notesOf(filepath.Join(o.root, changelog), m.version)
	if err != nil {
		return err
	}
	install, err := manifestOf(filepath.Join(o.root, manifest), m.name)
	if err != nil {
		return err
	}
	files := map[string][]byte{"notes.md": notes, "fairlead.yaml": install}
	renamed := map[string]string{
		m.path:  "fairlead-" + m.version + "-image.tar",
		m.chart: "fairlead-" + strings.TrimPrefix(m.version, "v") + ".tgz", // as helm calls it
	}
	for _, arch := range o.arches {
		stem := "fairlead-" + m.version + "-linux-" + arch
		if files[stem+".tar.gz"], err = archiveOf(o, arch); err != nil {
			return err
		}
		renamed[filepath.Join(o.output, "fairlead-"+arch+".spdx.json")] = stem + ".spdx.json"
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(o.output, name), content, 0o644); err != nil {
			return err
		}
	}
	for from, to := range renamed {
		if err := os.Rename(from, filepath.Join(o.output, to)); err != nil {
			return err
		}
	}
	return writeSums(o.output)
}

// notesOf returns the section about a version from the changelog.
func notesOf(path, version string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	heads := section.FindAllSubmatchIndex(text, -1)
	for i, head := range heads {
		if string(text[head[2]:head[3]]) != version {
			continue
		}
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		if notes := bytes.TrimSpace(text[head[1]:end]); len(notes) > 0 {
			return append(notes, '\n'), nil
		}
	}
	return nil, fmt.Errorf("%s has no section %q, or an empty one: what has changed belongs there", path, "## "+version)
}

// manifestOf returns the manifest with the image of the release.
func manifestOf(path, image string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	unset := []byte(repository + ":v0.0.0")
	if !bytes.Contains(text, unset) {
		return nil, fmt.Errorf("%s does not name the image %s", path, unset)
	}
	return bytes.ReplaceAll(text, unset, []byte(image)), nil
}

// archiveOf packs the programs for an architecture, with the license. The same programs give the same
// bytes.
func archiveOf(o options, arch string) ([]byte, error) {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	add := func(path string, mode int64) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(path), Size: int64(len(content)), Mode: mode}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = archive.Write(content)
		return err
	}
	for _, name := range names() {
		if err := add(filepath.Join(o.built, arch, name), 0o755); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(add(filepath.Join(o.root, license), 0o644), archive.Close(), compressed.Close()); err != nil {
		return nil, fmt.Errorf("pack the programs for %s: %w", arch, err)
	}
	return packed.Bytes(), nil
}

// writeSums writes the sums of all files of a folder, in the form that sha256sum -c reads.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, e := range entries {
		if e.Name() == sums || e.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum[:]), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, sums), []byte(list.String()), 0o644)
}
