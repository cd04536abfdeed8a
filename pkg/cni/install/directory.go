package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// locked runs change while it holds a lock on the directory, which keeps out other callers in this
// package, and adds advice to errors.
func locked(path string, change func(dir *os.File) error) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return advice(path, err)
	}
	defer dir.Close()
	for {
		if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock directory %s: %w", path, err)
	}
	return advice(path, change(dir))
}

// advice adds what to do about it to an error of a directory.
func advice(path string, err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: directory %s is read-only; "+
			"in a container, mount the node's own as a writable volume", err, path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run as root, and make directory %s writable", err, path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: create directory %s "+
			"(in a container, mount the node's own there), or name the one that the runtime uses", err, path)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: free space in %s", err, path)
	}
	return err
}
