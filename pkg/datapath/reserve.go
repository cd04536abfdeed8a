package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"fairlead.io/fairlead/pkg/hostfs"
)

// ErrLeft is wrapped by the error of Reserve while programs of an earlier agent are attached.
var ErrLeft = errors.New("programs of an agent that served Services, or devices, are still attached")

// Reserve keeps other agents away from a bpf filesystem, on behalf of an agent that attaches none
// of these programs, until the file is closed. It fails if an earlier agent left programs attached,
// since nothing would keep them up to date.
func Reserve(bpffs string) (*os.File, error) {
	if err := hostfs.CheckBPFFS(bpffs); err != nil {
		return nil, err
	}
	if err := checkKernel(needs()); err != nil {
		return nil, err
	}
	p := newPins(bpffs)
	if err := os.MkdirAll(p.top, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	lock, err := p.lock()
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{p.links, p.devs, p.maps} {
		left, err := os.ReadDir(dir)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s: %w: \"fairlead cleanup\" removes them", dir, ErrLeft)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, lock.Close())
		}
	}
	return lock, nil
}
