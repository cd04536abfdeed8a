package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
)

// pins are the directories of one schema version of the datapath. Names on a bpf filesystem have no
// dots.
type pins struct {
	top   string // of all versions of fairlead
	root  string
	maps  string
	links string
	devs  string // links at devices
	stage string // staging directory: pins not in use yet, or no longer; cleared at every start
	table string // what is needed to finish a growth of the map of established flows
}

func newPins(bpffs string) pins {
	top := filepath.Join(bpffs, "fairlead")
	root := filepath.Join(top, "v1")
	return pins{
		top:   top,
		root:  root,
		maps:  filepath.Join(root, "maps"),
		links: filepath.Join(root, "links"),
		devs:  filepath.Join(root, "devices"),
		stage: filepath.Join(root, "next"),
		table: filepath.Join(root, maps.GrowthDir),
	}
}

// MapsDir returns the directory below a bpf filesystem where the maps are pinned.
func MapsDir(bpffs string) string { return newPins(bpffs).maps }

// prepare creates the directories, locks them and clears the staging directory. The lock is
// released when the file is closed or the process ends.
func (p pins) prepare() (lock *os.File, err error) {
	if err := os.MkdirAll(p.links, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	if lock, err = p.lock(); err != nil {
		return nil, err
	}
	if err := p.clearStage(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// lock keeps out a second agent, which would write other rows to the same maps. It locks the
// directory itself, so it works between containers that share nothing but the bpf filesystem.
func (p pins) lock() (*os.File, error) {
	top, err := os.Open(p.top)
	if err != nil {
		return nil, fmt.Errorf("lock pins: %w", err)
	}
	err = unix.Flock(int(top.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%s: %w; stop it, or give this one another bpf filesystem and cgroup root", p.top, ErrInUse)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock pins: %w", err), top.Close())
	}
	return top, nil
}

func (p pins) openStage() error {
	if err := os.Mkdir(p.stage, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	return nil
}

func (p pins) clearStage() error {
	if err := os.RemoveAll(p.stage); err != nil {
		return fmt.Errorf("clear %s: %w", p.stage, err)
	}
	return nil
}

func (p pins) staged(name string) string { return filepath.Join(p.stage, name) }

func (p pins) link(name string) string { return filepath.Join(p.links, name) }

func (p pins) mapPin(name string) string { return filepath.Join(p.maps, name) }

// linkNames returns the names of the pinned links.
func (p pins) linkNames() ([]string, error) {
	entries, err := os.ReadDir(p.links)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// exchange swaps the pins at from and to in one step. If there is none at to, it just moves from
// there.
func exchange(from, to string) (replaced bool, err error) {
	err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, fs.ErrNotExist) {
		return false, rename(from, to)
	}
	if err != nil {
		return false, fmt.Errorf("publish pin: exchange %s and %s: %w", from, to, err)
	}
	return true, nil
}

// rename replaces to by from in one step, so to always exists.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("publish pin: %w", err)
	}
	return nil
}
