package cni

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

// PrepareSocketDir creates the directory of a socket. It refuses a directory that others may write to,
// because they could put a socket of their own in place of the agent's.
func PrepareSocketDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("check state directory: %w", err)
	}
	if info.Mode().Perm()&writableByRest != 0 {
		return fmt.Errorf("check state directory %s: others may write to it: choose another with --state-dir, or run \"chmod go-w %s\"",
			dir, dir)
	}
	return nil
}

// ListenSocket publishes a unix socket that only root can open, in one step, with its final permissions, and replaces one that is
// already there; the caller must know that nobody uses that one. Closing the listener does not
// remove the file, which may belong to another process by then.
func ListenSocket(path string) (*net.UnixListener, error) {
	staged := path + newSuffix
	if err := os.Remove(staged); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
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
