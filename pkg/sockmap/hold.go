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

// Hold makes everything use TCP, whatever agents and their options say, until Release or a reboot.
// It works on the pins, so it needs no agent, and it takes effect with the next message. It returns
// whether there are any programs to hold.
func Hold(bpffs string) (bool, error) { return hold(bpffs, 1) }

// Release undoes Hold.
func Release(bpffs string) (bool, error) { return hold(bpffs, 0) }

func hold(bpffs string, value uint32) (found bool, err error) {
	var errs []error
	told := map[string]bool{}
	for again := true; again; { // an agent that starts meanwhile may bring programs of its own
		again = false
		dirs, err := generations(Dir(bpffs), false)
		if err != nil {
			return found, errors.Join(append(errs, err)...)
		}
		for _, dir := range dirs {
			if told[dir] {
				continue
			}
			told[dir], again = true, true
			has, err := set(dir, bpf.SockmapControlCONTROL_HELD, value)
			found = found || has
			errs = append(errs, err)
		}
	}
	return found, errors.Join(errs...)
}

// set sets a switch of one version of the programs, unless that has been removed meanwhile.
func set(dir string, what bpf.SockmapControl, value uint32) (found bool, err error) {
	path := filepath.Join(dir, controlMap)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	return true, errors.Join(m.Put(uint32(what), value), m.Close())
}

// drained is how long Remove waits for processes to read what waits for them.
const drained = 30 * time.Second

const removeEvery = 100 * time.Millisecond

// Remove detaches all programs and deletes all pins. Data that waits past TCP has to be read first:
// if some is left after half a minute, Remove returns an error, and the maps with it stay.
func Remove(bpffs string) (removed bool, err error) {
	dirs, err := generations(Dir(bpffs), true)
	if err != nil || len(dirs) == 0 {
		return false, errors.Join(err, removeDir(bpffs))
	}
	s := &Sockmap{}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, dir := range dirs {
		g, err := open(dir)
		if err != nil {
			return false, err
		}
		s.former = append(s.former, g)
		if err := g.retire(); err != nil {
			return false, err
		}
	}
	for end := time.Now().Add(drained); ; time.Sleep(removeEvery) {
		left, err := s.sweepFormer()
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
	return nil
}
