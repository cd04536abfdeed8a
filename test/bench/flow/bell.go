package flow

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// newBell makes a named pipe, and returns its path and a function that removes it.
func newBell() (path string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "fairlead-flow-")
	if err != nil {
		return "", nil, fmt.Errorf("make pipe: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) } // a leftover temporary directory does no harm
	path = filepath.Join(dir, "bell")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		remove()
		return "", nil, fmt.Errorf("make pipe: %w", err)
	}
	return path, remove, nil
}

// openBell opens a pipe for reading and writing, so that neither end waits for the other to open
// it.
func openBell(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open pipe %s: %w", path, err)
	}
	return fd, nil
}

func ring(fd int) error {
	one := [1]byte{1}
	_, err := unix.Write(fd, one[:])
	return err
}
