package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// LayerWriter writes the files of a layer. The first error stays until Close. What is added first wins, as a later file
// of the same name would only make the layer bigger.
type LayerWriter struct {
	file *os.File
	sum  hash.Hash
	tar  *tar.Writer
	have map[string]bool
	size counter
	err  error
}

type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }

// NewLayer creates a layer in a new file.
func NewLayer(file string) *LayerWriter {
	l := &LayerWriter{sum: sha256.New(), have: map[string]bool{}}
	if l.file, l.err = os.Create(file); l.err == nil {
		l.tar = tar.NewWriter(io.MultiWriter(l.file, l.sum, &l.size))
	}
	return l
}

// Close ends the layer.
func (l *LayerWriter) Close() (*Layer, error) {
	if l.err == nil {
		l.err = l.tar.Close()
	}
	if l.file != nil {
		l.err = errors.Join(l.err, l.file.Close())
	}
	if l.err != nil {
		return nil, fmt.Errorf("write layer: %w", l.err)
	}
	return &Layer{path: l.file.Name(), digest: "sha256:" + hex.EncodeToString(l.sum.Sum(nil)), size: int64(l.size)}, nil
}

// Dir adds a directory.
func (l *LayerWriter) Dir(name string, mode int64) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}, nil)
}

// Text adds a file.
func (l *LayerWriter) Text(name, content string) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, strings.NewReader(content))
}

// Symlink adds a symbolic link.
func (l *LayerWriter) Symlink(name, target string) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, nil)
}

// Program adds a file of this machine that can be run.
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
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: info.Size()}, file)
}

// add writes an entry, unless there is one of that name, and the directories that it is in.
func (l *LayerWriter) add(header *tar.Header, content io.Reader) {
	if l.err != nil {
		return
	}
	header.Name = inUsr(strings.TrimPrefix(path.Clean("/"+header.Name), "/"))
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

// inUsr moves what packages still have in /bin, /sbin and /lib to where these directories point to.
func inUsr(name string) string {
	if top, _, below := strings.Cut(name, "/"); below && isMerged(top) {
		return "usr/" + name
	}
	return name
}

// isMerged tells whether a path is one of the directories that are links into /usr.
func isMerged(name string) bool {
	return slices.Contains([]string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}, name)
}
