// Package chart packages the chart so that it installs the image that it was packaged with.
package chart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"
)

// Image is the image that the chart is to install.
type Image struct {
	Name    string // with its tag
	Version string // of the programs, with a leading v
	Time    time.Time
}

// Package returns the chart in a folder as an archive that helm can install. The same chart and
// image give the same bytes.
func Package(folder fs.FS, image Image) ([]byte, error) {
	repository, tag, err := Split(image.Name)
	if err != nil {
		return nil, err
	}
	// The lines that the archive changes.
	edits := map[string][]edit{
		"Chart.yaml": {
			{regexp.MustCompile(`(?m)^version: .*$`), "version: " + strings.TrimPrefix(image.Version, "v")},
			{regexp.MustCompile(`(?m)^appVersion: .*$`), fmt.Sprintf("appVersion: %q", tag)},
		},
		"values.yaml": {{regexp.MustCompile(`(?m)^  repository: .*$`), fmt.Sprintf("  repository: %q", repository)}},
	}
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	err = fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(folder, path)
		if err != nil {
			return err
		}
		for _, e := range edits[path] {
			if content, err = e.make(content); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		delete(edits, path)
		header := &tar.Header{Typeflag: tar.TypeReg, Name: "fairlead/" + path, Size: int64(len(content)), Mode: 0o644, ModTime: image.Time, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = archive.Write(content)
		return err
	})
	if err == nil && len(edits) > 0 {
		err = fmt.Errorf("it lacks one of the files %v", []string{"Chart.yaml", "values.yaml"})
	}
	if err != nil {
		return nil, fmt.Errorf("package the chart: %w", err)
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// edit replaces one line.
type edit struct {
	line *regexp.Regexp
	by   string
}

func (e edit) make(content []byte) ([]byte, error) {
	if n := len(e.line.FindAll(content, -1)); n != 1 {
		return nil, fmt.Errorf("%d lines match %s, want one", n, e.line)
	}
	return e.line.ReplaceAllLiteral(content, []byte(e.by)), nil
}

// Split splits the name of an image into what is before its tag, and the tag. The registry in the
// name may have a port.
func Split(name string) (repository, tag string, err error) {
	at := strings.LastIndex(name, ":")
	if at <= 0 || at == len(name)-1 || strings.ContainsAny(name[at:], "/@") || strings.Contains(name, "@") {
		return "", "", fmt.Errorf("the image name %s has no tag: give one, as in registry.example/fairlead:v1", name)
	}
	return name[:at], name[at+1:], nil
}
