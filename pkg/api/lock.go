package api

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrInUse is wrapped by errors that say that another agent holds the socket, or that a Claim does.
var ErrInUse = errors.New("another agent or \"fairlead cleanup\" is running")

const lockSuffix = ".lock"

// takeLock takes the lock that tells a live agent from a socket that a dead one left behind. The
// kernel releases the lock when the process ends, for whatever reason.
func takeLock(path string) (*os.File, error) {
	for {
		file, err := lockFile(path)
		if err != nil {
			return nil, err
		}
		// A Claim may have removed the file between opening and locking it.
		mine, err := file.Stat()
		named, namedErr := os.Stat(path)
		if err == nil && namedErr == nil && os.SameFile(mine, named) {
			return file, nil
		}
		if namedErr != nil && !errors.Is(namedErr, fs.ErrNotExist) {
			err = errors.Join(err, namedErr)
		}
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == nil {
		return file, nil
	}
	if errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("%w: stop it or wait for it, or give this one its own --state-dir, --bpffs and --cgroup-root", ErrInUse)
	}
	return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
}

// Claim keeps agents from starting until it is closed or removed.
type Claim struct {
	path string
	lock *os.File // nil if no agent ever ran here
}

// NewClaim claims the socket at path. If an agent or another Claim holds it, the error wraps
// ErrInUse. If the directory does not exist, NewClaim claims nothing: the first agent will create
// it.
func NewClaim(path string) (*Claim, error) {
	if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
		return &Claim{path: path}, nil
	}
	lock, err := takeLock(path + lockSuffix)
	if err != nil {
		return nil, err
	}
	return &Claim{path: path, lock: lock}, nil
}

// Remove releases the claim and removes the files that agents left behind.
func (c *Claim) Remove() error {
	if c.lock == nil {
		return nil
	}
	var errs []error
	for _, name := range []string{c.path, c.lock.Name()} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove an agent's leftover file: %w", err))
		}
	}
	return errors.Join(append(errs, c.Close())...)
}

// Close releases the claim and leaves the files for the next agent. It may be called twice.
func (c *Claim) Close() error {
	if c.lock == nil {
		return nil
	}
	lock := c.lock
	c.lock = nil
	return lock.Close()
}
