package image

import (
	"archive/tar"
	"io"
	"slices"
	"strings"

	"fairlead.io/fairlead/deploy/image/oci"
)

// layer is a layer of a system whose /bin, /sbin and /lib are links into /usr, which packages need
// not know.
type layer struct{ *oci.LayerWriter }

func newLayer(file string) layer { return layer{oci.NewLayer(file)} }

// text adds a regular file.
func (l layer) text(name, content string) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, strings.NewReader(content))
}

// script adds an executable file.
func (l layer) script(name, content string) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}, strings.NewReader(content))
}

// symlink adds a symbolic link.
func (l layer) symlink(name, target string) {
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, nil)
}

func (l layer) add(header *tar.Header, content io.Reader) {
	header.Name = inUsr(strings.TrimPrefix(header.Name, "/"))
	l.Add(header, content)
}

// inUsr moves names in /bin, /sbin and /lib to the directories that these are links to.
func inUsr(name string) string {
	if top, _, below := strings.Cut(name, "/"); below && isMerged(top) {
		return "usr/" + name
	}
	return name
}

// isMerged reports whether a path is one of the directories that are links into /usr.
func isMerged(name string) bool {
	return slices.Contains([]string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}, name)
}
