package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
)

// ReadLinks reports on the links pinned in dir, as the kernel has them. A missing directory means
// no links.
func ReadLinks(dir string) ([]ProgramStatus, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var list []ProgramStatus
	for _, entry := range entries {
		status, err := readLink(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, status)
	}
	return list, nil
}

func readLink(path string) (ProgramStatus, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return ProgramStatus{}, fmt.Errorf("open link %s: %w", path, err)
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return ProgramStatus{}, fmt.Errorf("inspect link %s: %w", path, err)
	}
	// The kernel keeps a link whose cgroup is gone, or that was detached by force, with cgroup ID
	// 0.
	cgroup := info.Cgroup()
	return ProgramStatus{
		Name: filepath.Base(path), ID: uint32(info.Program), Attached: cgroup == nil || cgroup.CgroupId != 0,
	}, nil
}
