package sockmap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// heldDir returns the path of a directory that is there while an operator makes everything use TCP. It
// outlives all generations: one that is empty may be removed while the operator still wants that.
func heldDir(bpffs string) string { return Dir(bpffs) + "-held" }

// isHeld reports whether an operator makes everything use TCP.
func isHeld(bpffs string) (bool, error) {
	_, err := os.Stat(heldDir(bpffs))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Hold makes everything use TCP, whatever agents and their options say, until Release or a reboot.
// It works on the pins, so it needs no agent, and it takes effect with the next message. It returns
// whether an agent has ever let anything bypass TCP.
func Hold(bpffs string) (found bool, err error) {
	if _, err := os.Stat(Dir(bpffs)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, errors.Join(makeHeld(bpffs), writeHold(bpffs, 1))
}

func makeHeld(bpffs string) error {
	if err := os.Mkdir(heldDir(bpffs), 0o700); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Release undoes Hold. Programs that still hold without the directory have been told by a version that
// did not make it, so they are told first; and again afterward, because others may have come that
// still saw it.
func Release(bpffs string) (found bool, err error) {
	if _, err := os.Stat(Dir(bpffs)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, errors.Join(writeHold(bpffs, 0), removeHeld(bpffs), writeHold(bpffs, 0))
}

func removeHeld(bpffs string) error {
	if err := os.Remove(heldDir(bpffs)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeHold tells all versions of the programs whether an operator makes everything use TCP.
func writeHold(bpffs string, value uint32) error {
	var errs []error
	logged := map[string]bool{}
	for again := true; again; { // an agent that starts meanwhile may bring programs of its own
		again = false
		dirs, err := generations(Dir(bpffs), false)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, dir := range dirs {
			if logged[dir] {
				continue
			}
			logged[dir], again = true, true
			errs = append(errs, set(dir, bpf.SockmapControlCONTROL_HELD, value))
		}
	}
	return errors.Join(errs...)
}

// set sets a switch of one version of the programs, unless that has been removed meanwhile.
func set(dir string, what bpf.SockmapControl, value uint32) error {
	path := filepath.Join(dir, controlMap)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return errors.Join(m.Put(uint32(what), value), m.Close())
}

// drained is how long Remove waits for processes to read what waits for them.
const drained = 30 * time.Second

const removeEvery = 100 * time.Millisecond

// Remove detaches all programs and deletes all pins. Data that waits past TCP has to be read first:
// if some is left after half a minute, Remove returns an error, and the maps with it stay.
func Remove(bpffs string) (removed bool, err error) {
	dirs, err := generations(Dir(bpffs), true)
	if err != nil {
		return false, err
	}
	if len(dirs) == 0 {
		return false, removeDir(bpffs)
	}
	s := &Sockmap{}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, dir := range dirs {
		g, err := open(dir)
		if err != nil {
			return false, err
		}
		s.older = append(s.older, g)
		if err := g.retire(); err != nil {
			return false, err
		}
	}
	for end := time.Now().Add(drained); ; time.Sleep(removeEvery) {
		left, err := s.sweepOlder()
		if err != nil {
			return false, err
		}
		if left == 0 {
			return true, removeDir(bpffs)
		}
		if time.Now().After(end) {
			return false, fmt.Errorf("%d sockets have unread data past TCP, so their maps stay in %s: "+
				"stop the processes, or try again", left, Dir(bpffs))
		}
	}
}

func removeDir(bpffs string) error {
	if err := os.Remove(Dir(bpffs)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeHeld(bpffs)
}
