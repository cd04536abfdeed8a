package file

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// maxSize limits the files that are read. Decoding one takes a multiple of its size in memory.
const maxSize = 256 << 20

// file is one file of manifests: its current contents, and what of it is served.
type file struct {
	name string

	stamp  stamp // when it was last read
	sum    [sha256.Size]byte
	parsed []object
	bad    *FileError // why parsed does not match the contents

	served []object   // from the last valid contents
	err    *FileError // why served does not match the contents

	missing  time.Time // since when the file has not been found
	gone     bool      // missing for long enough
	restless bool      // too young to be read at the last scan
	dirty    bool      // changed since it was last served
}

// stamp changes whenever a file does, because the inode's ctime cannot be set back.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{size: info.Size()}
	}
	return stamp{uint64(stat.Dev), stat.Ino, info.Size(), stat.Mtim, stat.Ctim}
}

// load reads the file if it changed, or if always is set. If the file is so young that a writer may
// still be at work, load returns how long to wait.
func (f *file) load(dir string, always bool, settle time.Duration, to target) time.Duration {
	path := filepath.Join(dir, f.name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err != nil {
			return f.miss(settle) // removed since the directory was listed
		}
	}
	if err != nil {
		f.fail(0, fmt.Errorf("read file: %w", cause(err)))
		return 0
	}
	if err := readable(info); err != nil {
		f.fail(0, err)
		return 0
	}
	if !always && stampOf(info) == f.stamp {
		return 0
	}
	if age := time.Since(info.ModTime()); age >= 0 && age < settle {
		return settle - age
	}
	data, info, err := read(path)
	if err != nil {
		f.fail(0, err)
		return 0
	}
	if int64(len(data)) != info.Size() {
		return max(settle, time.Millisecond) // it grew or shrank while it was read
	}
	f.accept(data, stampOf(info), to)
	return 0
}

// miss records that the file was not found. Some editors remove a file before they write it anew,
// so it counts as gone only after a while.
func (f *file) miss(settle time.Duration) time.Duration {
	if f.missing.IsZero() {
		f.missing = time.Now()
	}
	if away := time.Since(f.missing); away < settle {
		return settle - away
	}
	f.gone = true
	return 0
}

// accept parses new contents.
func (f *file) accept(data []byte, stamp stamp, to target) {
	f.stamp = stamp
	sum := sha256.Sum256(data)
	if sum == f.sum {
		return
	}
	if len(data) == 0 && len(f.served) > 0 {
		f.fail(0, fmt.Errorf("the file is empty: to remove its objects (%d), remove the file",
			len(f.served)))
		f.stamp, f.sum = stamp, sum
		return
	}
	objects, err := parse(f.name, bytes.TrimPrefix(data, []byte("\ufeff")), to)
	if err != nil {
		var at *FileError
		if !errors.As(err, &at) {
			at = &FileError{Message: err.Error()}
		}
		f.fail(at.Line, errors.New(at.Message))
	} else {
		f.parsed, f.bad, f.dirty = objects, nil, true
	}
	f.stamp, f.sum = stamp, sum
}

// fail records that the current contents cannot be used. They are read again at the next scan,
// unless the caller sets their stamp.
func (f *file) fail(line int, err error) {
	f.stamp, f.sum, f.parsed = stamp{}, [sha256.Size]byte{}, nil
	bad := &FileError{File: f.name, Line: line, Message: err.Error(), Since: time.Now()}
	if !f.bad.same(bad) {
		f.bad, f.dirty = bad, true
	}
}

// read returns the contents of a regular file, and the FileInfo of the file that it read.
func read(path string) ([]byte, fs.FileInfo, error) {
	// O_NONBLOCK keeps the open from blocking if the file has become a pipe since it was checked.
	in, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("read file: %w", cause(err))
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("read file: %w", cause(err))
	}
	if err := readable(info); err != nil {
		return nil, nil, err
	}
	var buf bytes.Buffer
	buf.Grow(int(info.Size()) + bytes.MinRead)
	if _, err := buf.ReadFrom(io.LimitReader(in, maxSize+1)); err != nil {
		return nil, nil, fmt.Errorf("read file: %w", cause(err))
	}
	return buf.Bytes(), info, nil
}

func readable(info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return errors.New("read file: it is a directory: rename it or put its files beside it")
	case !info.Mode().IsRegular():
		return fmt.Errorf("read file: it is not a regular file (%s)", info.Mode().Type())
	case info.Size() > maxSize:
		return fmt.Errorf("read file: it has %d bytes, more than the limit of %d: split it", info.Size(), maxSize)
	}
	return nil
}

// cause strips the operation and the path from an error, because messages name the file already.
func cause(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
