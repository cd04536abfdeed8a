package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIdentify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	for name, repository := range map[string]string{
		"example.com/a:1": "example.com/a", "example.com:5000/a:1": "example.com:5000/a", "example.com:5000/a": "example.com:5000/a",
	} {
		digest, err := WriteIndex(path, []string{name}, nil, []Image{{Arch: "amd64", Layers: []*Layer{makeLayer(t, "a")}}})
		if err != nil {
			t.Fatal(err)
		}
		id, err := Identify(path)
		if err != nil || id != (Identity{name, digest}) || id.Repository() != repository {
			t.Errorf("%v of %s, %v, want %s %s of %s", id, id.Repository(), err, name, digest, repository)
		}
	}
}

func TestIdentifyOther(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	image := Image{Names: []string{"a:1"}, Layers: []*Layer{makeLayer(t, "a")}}
	nameless := image
	nameless.Names = []string{""}
	for name, images := range map[string][]Image{"none": {}, "two": {image, {Names: []string{"b:1"}, Layers: image.Layers}}, "nameless": {nameless}} {
		if err := Write(at(name), images); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(at("two"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"empty": "", "text": strings.Repeat("text", 1000), "torn": string(whole[:700])} {
		if err := os.WriteFile(at(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"none": "does not hold one", "two": "does not hold one", "nameless": "does not hold one", "empty": "no OCI image layout",
		"text": "invalid tar header", "torn": "unexpected EOF", "missing": "no such file",
	} {
		if id, err := Identify(at(name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", name, id, err, want)
		}
	}
}
