package vm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
)

// File is a file in a machine's file system, which lives in memory. Its content is that of the
// local file Source if set, and otherwise Content.
type File struct {
	Path    string // absolute path
	Mode    os.FileMode
	Source  string
	Content []byte
}

// The types of inodes in the archive.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
)

// archive writes the format that the kernel unpacks before it starts the first process: cpio of the
// kind "newc". It is not compressed, since decompression would be slow on an emulated processor.
type archive struct {
	w       io.Writer
	written int64
	inode   int
	dirs    []string
}

// writeArchive writes the files and their parent directories.
func writeArchive(w io.Writer, files []File) error {
	a := &archive{w: w}
	for _, f := range files {
		if err := a.add(f); err != nil {
			return fmt.Errorf("write %s to initramfs: %w", f.Path, err)
		}
	}
	return a.entry("TRAILER!!!", 0, 0, bytes.NewReader(nil))
}

func (a *archive) add(f File) error {
	name := path.Clean("/" + f.Path)[1:]
	if err := a.parents(name); err != nil {
		return err
	}
	mode := cpioFile | uint32(f.Mode.Perm())
	if f.Source == "" {
		return a.entry(name, mode, int64(len(f.Content)), bytes.NewReader(f.Content))
	}
	source, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	return a.entry(name, mode, info.Size(), source)
}

// parents adds the missing parent directories of name: the kernel does not create any.
func (a *archive) parents(name string) error {
	dir := path.Dir(name)
	if dir == "." || slices.Contains(a.dirs, dir) {
		return nil
	}
	if err := a.parents(dir); err != nil {
		return err
	}
	a.dirs = append(a.dirs, dir)
	return a.entry(dir, cpioDir|0o755, 0, bytes.NewReader(nil))
}

func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) error {
	a.inode++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.inode, mode,
		0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	if err := a.write(bytes.NewReader([]byte(header+name+"\x00")), int64(len(header)+len(name)+1)); err != nil {
		return err
	}
	return a.write(content, size)
}

// write writes exactly size bytes and pads to a multiple of four.
func (a *archive) write(content io.Reader, size int64) error {
	n, err := io.CopyN(a.w, content, size)
	a.written += n
	if err != nil {
		return err
	}
	fill := -a.written & 3
	a.written += fill
	_, err = a.w.Write(make([]byte, fill))
	return err
}
