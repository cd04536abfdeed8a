package oci

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"
)

// Layer is a tar file with its digests and size.
type Layer struct {
	path   string
	media  string
	digest string
	size   int64
	diffID string // digest of the unpacked tar
}

// Size returns the size of the file in bytes.
func (l *Layer) Size() int64 { return l.size }

// LayerWriter writes the files of a layer. The first error sticks until Close. The first file of a
// name wins: a later one would only make the layer bigger. Entries have no time and no owner, so
// the same files give the same layer.
type LayerWriter struct {
	file    *os.File
	media   string
	packed  digester
	plain   digester
	tar     *tar.Writer
	packing io.Closer // nil for an uncompressed layer
	have    map[string]bool
	err     error
}

// digester computes the digest and the length of what is written to it.
type digester struct {
	hash.Hash
	size int64
}

func (d *digester) Write(b []byte) (int, error) {
	d.size += int64(len(b))
	return d.Hash.Write(b)
}

func (d *digester) digest() string { return "sha256:" + hex.EncodeToString(d.Sum(nil)) }

// NewLayer creates a layer in a new file.
func NewLayer(file string) *LayerWriter { return newLayer(file, mediaLayer) }

// NewCompressedLayer creates a compressed layer in a new file, for images that travel.
func NewCompressedLayer(file string) *LayerWriter { return newLayer(file, mediaCompressedLayer) }

func newLayer(file, media string) *LayerWriter {
	l := &LayerWriter{media: media, packed: digester{Hash: sha256.New()}, plain: digester{Hash: sha256.New()}, have: map[string]bool{}}
	if l.file, l.err = os.Create(file); l.err != nil {
		return l
	}
	out := io.MultiWriter(l.file, &l.packed)
	if media == mediaCompressedLayer {
		packing := gzip.NewWriter(out)
		l.packing, out = packing, packing
	}
	l.tar = tar.NewWriter(io.MultiWriter(out, &l.plain))
	return l
}

// Close finishes the layer.
func (l *LayerWriter) Close() (*Layer, error) {
	if l.err == nil {
		l.err = l.tar.Close()
	}
	if l.err == nil && l.packing != nil {
		l.err = l.packing.Close()
	}
	if l.file != nil {
		l.err = errors.Join(l.err, l.file.Close())
	}
	if l.err != nil {
		return nil, fmt.Errorf("write layer: %w", l.err)
	}
	return &Layer{path: l.file.Name(), media: l.media, digest: l.packed.digest(), size: l.packed.size, diffID: l.plain.digest()}, nil
}

// Fail makes Close return an error, unless there is an earlier one.
func (l *LayerWriter) Fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// Has reports whether the layer has an entry with that name.
func (l *LayerWriter) Has(name string) bool { return l.have[name] }

// Dir adds a directory.
func (l *LayerWriter) Dir(name string, mode int64) {
	l.Add(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}, nil)
}

// Program adds an executable file from this machine.
func (l *LayerWriter) Program(name, source string) {
	if l.err != nil {
		return
	}
	file, err := os.Open(source)
	if err != nil {
		l.err = err
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		l.err = err
		return
	}
	l.Add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: info.Size()}, file)
}

// Add writes an entry and its parent directories, except those that the layer has already.
func (l *LayerWriter) Add(header *tar.Header, content io.Reader) {
	if l.err != nil {
		return
	}
	header.Name = strings.TrimPrefix(path.Clean("/"+header.Name), "/")
	if header.Name == "" || l.have[header.Name] {
		return
	}
	if dir := path.Dir(header.Name); dir != "." && !l.have[dir] {
		l.Dir(dir, 0o755)
	}
	l.have[header.Name] = true
	if header.Typeflag == tar.TypeDir {
		header.Name += "/"
	}
	if l.err = l.tar.WriteHeader(header); l.err == nil && content != nil {
		_, l.err = io.Copy(l.tar, content)
	}
}
