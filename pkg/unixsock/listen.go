// Package unixsock makes unix sockets that nobody but root can open.
package unixsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

const (
	newSuffix      = ".new"
	writableByRest = 0o022
)

// PrepareDir makes the directory of a socket. Whoever may write to it could put a socket of his own there.
func PrepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("check state directory: %w", err)
	}
	if info.Mode().Perm()&writableByRest != 0 {
		return fmt.Errorf("check state directory %s: others may write to it; take another with --state-dir, or run \"chmod go-w %s\"",
			dir, dir)
	}
	return nil
}

// Listen publishes a socket with its final permissions in one step. One that is there is replaced: that nobody uses it is
// the caller's to know. Closing the listener leaves the file, which may be another's by then.
func Listen(path string) (*net.UnixListener, error) {
	staged := path + newSuffix
	if err := os.Remove(staged); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("clear socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: staged, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(staged, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect socket: %w", err), listener.Close())
	}
	if err := os.Rename(staged, path); err != nil {
		return nil, errors.Join(fmt.Errorf("publish socket: %w", err), listener.Close())
	}
	return listener, nil
}
