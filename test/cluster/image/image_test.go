package image

import (
	"archive/tar"
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

	"github.com/google/go-cmp/cmp"
)

// readTar returns the entries of a tar file in order: names with what they hold, and the contents.
func readTar(t *testing.T, path string) (list []string, contents map[string]string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	contents = map[string]string{}
	for r := tar.NewReader(file); ; {
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
		text := fmt.Sprintf("%s %o", header.Name, header.Mode)
		if header.Linkname != "" {
			text += " -> " + header.Linkname
		}
		list = append(list, text)
	}
}

func makeLayer(t *testing.T, fill func(*LayerWriter)) *Layer {
	t.Helper()
	w := NewLayer(filepath.Join(t.TempDir(), "layer.tar"))
	fill(w)
	layer, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func TestLayer(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!"), 0o600); err != nil {
		t.Fatal(err)
	}
	layer := makeLayer(t, func(l *LayerWriter) {
		l.Symlink("bin", "usr/bin")
		l.Program("bin/tool", program)
		l.Text("bin/tool", "the second of a name is left out")
		l.Text("/lib64/ld.so", "loader")
		l.Text("library", "not in lib")
		l.Dir("tmp", 0o1777)
	})
	have, contents := readTar(t, layer.path)
	want := []string{"bin 777 -> usr/bin", "usr/ 755", "usr/bin/ 755", "usr/bin/tool 755", "usr/lib64/ 755", "usr/lib64/ld.so 644", "library 644", "tmp/ 1777"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("entries (-want +have):\n%s", diff)
	}
	if contents["usr/bin/tool"] != "#!" {
		t.Errorf("tool has %q", contents["usr/bin/tool"])
	}
	file, err := os.ReadFile(layer.path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(file)
	if layer.digest != "sha256:"+hex.EncodeToString(sum[:]) || layer.size != int64(len(file)) {
		t.Errorf("digest %s and size %d are not the file's", layer.digest, layer.size)
	}
}

func TestLayerFails(t *testing.T) {
	l := NewLayer(filepath.Join(t.TempDir(), "layer.tar"))
	l.Program("tool", "/does/not/exist")
	l.Text("file", "")
	if _, err := l.Close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if _, err := NewLayer("/does/not/exist/layer.tar").Close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestCopy(t *testing.T) {
	deb := makeLayer(t, func(*LayerWriter) {})
	file, err := os.Create(deb.path)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(file)
	for _, h := range []tar.Header{
		{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./lib/x/lib.so", Typeflag: tar.TypeReg, Mode: 0o644, Uname: "root"},
		{Name: "./bin/a", Typeflag: tar.TypeReg, Mode: 0o755},
		{Name: "./bin/b", Typeflag: tar.TypeLink, Linkname: "./bin/a", Mode: 0o755},
		{Name: "./usr/share/doc/a/copyright", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	layer := makeLayer(t, func(l *LayerWriter) {
		from, err := os.Open(deb.path)
		if err == nil {
			err = l.copy(tar.NewReader(from))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	have, _ := readTar(t, layer.path)
	want := []string{"usr/ 755", "usr/lib/ 755", "usr/lib/x/ 755", "usr/lib/x/lib.so 644", "usr/bin/ 755", "usr/bin/a 755", "usr/bin/b 755 -> usr/bin/a"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
}

// Every digest in an archive must lead to a blob of that content, and every name to an image.
func TestWrite(t *testing.T) {
	base := makeLayer(t, func(l *LayerWriter) { l.Text("base", "1") })
	top := makeLayer(t, func(l *LayerWriter) { l.Text("top", "2") })
	path := filepath.Join(t.TempDir(), "images.tar")
	err := Write(path, []Image{
		{Names: []string{"example.com/a:1", "example.com/a:2"}, Layers: []*Layer{base, top}, Entrypoint: []string{"/a"}},
		{Names: []string{"example.com/b:1"}, Layers: []*Layer{base}, User: "1:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	list, files := readTar(t, path)
	if len(files) != len(list) {
		t.Errorf("something is there twice: %q", list)
	}
	for name, content := range files {
		sum := sha256.Sum256([]byte(content))
		if want, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && want != hex.EncodeToString(sum[:]) {
			t.Errorf("%s has another content", name)
		}
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	layers := map[string]int{}
	for _, d := range index.Manifests {
		var manifest struct{ Layers []descriptor }
		if err := json.Unmarshal([]byte(files[blob(d)]), &manifest); err != nil {
			t.Fatalf("%v: %v", d, err)
		}
		for _, l := range manifest.Layers {
			if int64(len(files[blob(l)])) != l.Size {
				t.Errorf("layer %v is not there", l)
			}
		}
		layers[d.Annotations["io.containerd.image.name"]] = len(manifest.Layers)
	}
	if diff := cmp.Diff(map[string]int{"example.com/a:1": 2, "example.com/a:2": 2, "example.com/b:1": 1}, layers); diff != "" {
		t.Errorf("images and their layers (-want +have):\n%s", diff)
	}
}

func blob(d descriptor) string { return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:") }

// An archive is whole or not there.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	err := Write(filepath.Join(dir, "images.tar"), []Image{{Names: []string{"a:1"}, Layers: []*Layer{{path: "/does/not/exist"}}}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
