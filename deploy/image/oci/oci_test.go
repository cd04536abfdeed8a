package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// readTar returns the names of a tar file's entries in order, and their contents.
func readTar(t *testing.T, from io.Reader) (list []string, contents map[string]string) {
	t.Helper()
	contents = map[string]string{}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		contents[header.Name] = string(content)
		list = append(list, fmt.Sprintf("%s %o", header.Name, header.Mode))
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func closeLayer(t *testing.T, l *LayerWriter) *Layer {
	t.Helper()
	layer, err := l.Close()
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func makeLayer(t *testing.T, name string) *Layer {
	t.Helper()
	l := NewLayer(filepath.Join(t.TempDir(), "layer.tar"))
	l.Dir(name, 0o755)
	return closeLayer(t, l)
}

func TestLayer(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!"), 0o600); err != nil {
		t.Fatal(err)
	}
	fill := func(l *LayerWriter) {
		l.Program("bin/tool", program)
		l.Program("/bin/tool", "/the/second/of/a/name/is/not/read/but/must/be/there")
	}
	l := NewLayer(filepath.Join(t.TempDir(), "broken.tar"))
	fill(l)
	if _, err := l.Close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	fill = func(l *LayerWriter) {
		l.Program("bin/tool", program)
		l.Dir("bin/tool", 0o755) // the second entry of a name is left out
		l.Dir("tmp", 0o1777)
	}
	for name, make := range map[string]func(string) *LayerWriter{"plain": NewLayer, "compressed": NewCompressedLayer} {
		t.Run(name, func(t *testing.T) {
			l := make(filepath.Join(t.TempDir(), "layer"))
			fill(l)
			layer := closeLayer(t, l)
			file := readFile(t, layer.path)
			if layer.digest != digestOf(file) || layer.Size() != int64(len(file)) {
				t.Errorf("digest %s and size %d are not the file's", layer.digest, layer.size)
			}
			plain := file
			if name == "compressed" {
				unpack, err := gzip.NewReader(bytes.NewReader(file))
				if err != nil {
					t.Fatal(err)
				}
				if plain, err = io.ReadAll(unpack); err != nil {
					t.Fatal(err)
				}
			}
			if layer.diffID != digestOf(plain) {
				t.Errorf("digest %s is not that of the unpacked layer", layer.diffID)
			}
			have, contents := readTar(t, bytes.NewReader(plain))
			if diff := cmp.Diff([]string{"bin/ 755", "bin/tool 755", "tmp/ 1777"}, have); diff != "" {
				t.Errorf("entries (-want +have):\n%s", diff)
			}
			if contents["bin/tool"] != "#!" {
				t.Errorf("tool has %q", contents["bin/tool"])
			}
		})
	}
}

func TestLayerFails(t *testing.T) {
	if _, err := NewLayer("/does/not/exist/layer.tar").Close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	l := NewLayer(filepath.Join(t.TempDir(), "layer.tar"))
	l.Fail(io.ErrShortBuffer)
	l.Fail(io.ErrShortWrite)
	if _, err := l.Close(); !errors.Is(err, io.ErrShortBuffer) {
		t.Errorf("error %v", err)
	}
}

// layout is an archive read back.
type layout struct {
	t     *testing.T
	files map[string]string
}

// readLayout reads an archive and checks that every blob has the content of its digest.
func readLayout(t *testing.T, path string) layout {
	t.Helper()
	list, files := readTar(t, bytes.NewReader(readFile(t, path)))
	if len(files) != len(list) {
		t.Errorf("duplicate entries: %q", list)
	}
	for name, content := range files {
		if want, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && "sha256:"+want != digestOf([]byte(content)) {
			t.Errorf("%s has content with another digest", name)
		}
	}
	return layout{t, files}
}

// read decodes a blob, given its digest, or a file, given its name, and returns the text.
func (l layout) read(name string, into any) string {
	l.t.Helper()
	if sum, ok := strings.CutPrefix(name, "sha256:"); ok {
		name = "blobs/sha256/" + sum
	}
	if err := json.Unmarshal([]byte(l.files[name]), into); err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	return l.files[name]
}

type list struct {
	Manifests   []descriptor
	Annotations map[string]string
}

func TestWrite(t *testing.T) {
	base, top := makeLayer(t, "base"), makeLayer(t, "top")
	path := filepath.Join(t.TempDir(), "images.tar")
	err := Write(path, []Image{
		{Names: []string{"example.com/a:1", "example.com/a:2"}, Layers: []*Layer{base, top}, Entrypoint: []string{"/a"}},
		{Names: []string{"example.com/b:1"}, Layers: []*Layer{base}, User: "1:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	l := readLayout(t, path)
	var index list
	l.read("index.json", &index)
	layers := map[string]int{}
	for _, d := range index.Manifests {
		var manifest struct{ Layers []descriptor }
		l.read(d.Digest, &manifest)
		for _, layer := range manifest.Layers {
			if content := l.files["blobs/sha256/"+strings.TrimPrefix(layer.Digest, "sha256:")]; int64(len(content)) != layer.Size {
				t.Errorf("layer %v is missing", layer)
			}
		}
		layers[d.Annotations["io.containerd.image.name"]] = len(manifest.Layers)
	}
	if diff := cmp.Diff(map[string]int{"example.com/a:1": 2, "example.com/a:2": 2, "example.com/b:1": 1}, layers); diff != "" {
		t.Errorf("images and their layers (-want +have):\n%s", diff)
	}
}

// A runtime finds the image for its architecture, and tools find what it is made of.
func TestWriteIndex(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	image := func(arch string) Image {
		return Image{
			Arch: arch, Layers: []*Layer{makeLayer(t, arch)}, Entrypoint: []string{"/a"}, Created: at, Labels: map[string]string{"title": "a"},
			Statement: &Statement{PredicateType: "https://example.com/made-of", Predicate: map[string]string{"of": arch}},
		}
	}
	var texts []string
	for range 2 {
		path := filepath.Join(t.TempDir(), "image.tar")
		digest, err := WriteIndex(path, []string{"example.com/a:1"}, map[string]string{"version": "1"}, []Image{image("amd64"), image("arm64")})
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, digest+digestOf(readFile(t, path)))
		checkIndex(t, readLayout(t, path), digest)
	}
	if texts[0] != texts[1] {
		t.Errorf("the same image has two digests: %q", texts)
	}
}

func checkIndex(t *testing.T, l layout, digest string) {
	t.Helper()
	var top, index list
	l.read("index.json", &top)
	if len(top.Manifests) != 1 || top.Manifests[0].Digest != digest || top.Manifests[0].Annotations["io.containerd.image.name"] != "example.com/a:1" {
		t.Fatalf("the archive has %v", top)
	}
	l.read(digest, &index)
	if len(index.Manifests) != 4 || index.Annotations["version"] != "1" {
		t.Fatalf("the index has %v", index)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		d, about := index.Manifests[i], index.Manifests[i+2]
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		var config struct {
			Architecture, OS, Created string
			Config                    struct{ Labels map[string]string }
		}
		l.read(d.Digest, &manifest)
		l.read(manifest.Config.Digest, &config)
		if *d.Platform != (platform{arch, "linux"}) || config.Architecture != arch || config.Created != "2026-01-02T03:04:05Z" || config.Config.Labels["title"] != "a" {
			t.Errorf("%v is %v", d, config)
		}
		var statement struct {
			Subject   []struct{ Digest map[string]string }
			Predicate map[string]string
		}
		l.read(about.Digest, &manifest)
		l.read(manifest.Layers[0].Digest, &statement)
		if *about.Platform != (platform{"unknown", "unknown"}) || about.Annotations["vnd.docker.reference.digest"] != d.Digest ||
			"sha256:"+statement.Subject[0].Digest["sha256"] != d.Digest || statement.Predicate["of"] != arch {
			t.Errorf("%v says %v", about, statement)
		}
	}
}

// An archive is complete or not there at all.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	missing := []Image{{Names: []string{"a:1"}, Layers: []*Layer{{path: "/does/not/exist"}}}}
	_, err := WriteIndex(filepath.Join(dir, "index.tar"), []string{"a:1"}, nil, missing)
	for _, err := range []error{Write(filepath.Join(dir, "images.tar"), missing), err} {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
