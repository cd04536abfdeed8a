// Package hostfs finds, checks and mounts the file systems that the programs need: the cgroup2 tree,
// to which they are attached, and a bpf filesystem, in which they are pinned.
package hostfs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoCgroup is wrapped by the error of Open if no cgroup2 tree is mounted.
	ErrNoCgroup = errors.New("no cgroup2 filesystem is mounted")

	// ErrPartOfTree is wrapped by the error of Open if only this container's own cgroups, or some
	// others, are visible: programs there would serve hardly anything, and nobody would notice.
	ErrPartOfTree = errors.New("only a part of the cgroup2 tree can be seen")
)

// RootID is the id of the root cgroup.
const RootID = 1

// GoneID is an id that no cgroup has.
const GoneID = math.MaxUint64

// Cgroup is a directory of the cgroup2 tree.
type Cgroup struct {
	Path string
	ID   uint64
}

// FindCgroup returns the cgroup at path, or the root of the mounted tree if path is empty.
func FindCgroup(path string) (Cgroup, error) {
	if path != "" {
		return OpenCgroup(path)
	}
	mounts, own, err := ownView()
	if err != nil {
		return Cgroup{}, fmt.Errorf("find cgroup root: %w", err)
	}
	found, err := cgroupRoot(mounts, own, OpenCgroup)
	if err != nil {
		return Cgroup{}, fmt.Errorf("find cgroup root: %w", err)
	}
	return found, nil
}

// CgroupRoot returns the cgroup that an agent would attach to, given the same path.
func CgroupRoot(path string) (string, error) {
	found, err := FindCgroup(path)
	return found.Path, err
}

// OpenCgroup returns the cgroup at path.
func OpenCgroup(path string) (Cgroup, error) {
	var fsInfo unix.Statfs_t
	if err := unix.Statfs(path, &fsInfo); err != nil {
		return Cgroup{}, fmt.Errorf("check cgroup %s: %w", path, err)
	}
	if fsInfo.Type != unix.CGROUP2_SUPER_MAGIC {
		return Cgroup{}, fmt.Errorf("check cgroup %s: not in a cgroup2 filesystem; programs cannot be attached to cgroup v1",
			path)
	}
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		return Cgroup{}, fmt.Errorf("check cgroup %s: %w", path, err)
	}
	return Cgroup{Path: path, ID: info.Ino}, nil
}

// ownView returns the cgroup2 mounts that this process sees, and its own cgroup.
func ownView() ([]cgroupMount, cgroupPath, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, cgroupPath{}, err
	}
	defer file.Close()
	mounts, err := cgroupMounts(file)
	if err != nil {
		return nil, cgroupPath{}, fmt.Errorf("read mounts: %w", err)
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, cgroupPath{}, err
	}
	return mounts, ownCgroup(groups), nil
}

// ownCgroup returns the cgroup2 from a list in the format of /proc/self/cgroup. A kernel omits it
// until cgroup2 is used; then every process is in the root.
func ownCgroup(list []byte) cgroupPath {
	for line := range bytes.Lines(list) {
		if path, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("0::")); ok {
			return parseCgroupPath(strings.TrimSuffix(string(path), " (deleted)"))
		}
	}
	return cgroupPath{}
}

// cgroupRoot returns the root of the tree among its mounts. It opens every one, since a mount may
// be hidden by another on top. In a container with its own cgroup namespace, "/" is just the
// container, unless the container spans the whole machine, and the host's tree shows as "/../..".
func cgroupRoot(mounts []cgroupMount, own cgroupPath, open func(path string) (Cgroup, error)) (Cgroup, error) {
	mounts = slices.Clone(mounts)
	slices.SortStableFunc(mounts, func(a, b cgroupMount) int {
		return cmp.Or(cmp.Compare(len(a.root.down), len(b.root.down)), cmp.Compare(b.root.up, a.root.up))
	})
	var failed error
	part := ""
	for _, mount := range mounts {
		found, err := open(mount.path)
		switch {
		case err != nil:
			failed = cmp.Or(failed, err)
		case found.ID == RootID || mount.root.whole() && (mount.root.up > 0 || !own.whole()):
			return found, nil
		default:
			part = cmp.Or(part, found.Path)
		}
	}
	switch {
	case part != "":
		return Cgroup{}, fmt.Errorf("%w, at %s: let the container see the node's (a hostPath volume of /sys/fs/cgroup), or name "+
			"a directory with --cgroup-root to serve only the processes in it", ErrPartOfTree, part)
	case failed != nil:
		return Cgroup{}, fmt.Errorf("%w that can be opened: %w; \"fairlead init\" mounts one", ErrNoCgroup, failed)
	}
	return Cgroup{}, fmt.Errorf("%w; \"fairlead init\" mounts one, or name a directory in one with --cgroup-root", ErrNoCgroup)
}

// HoldsOwn reports whether this process is in the cgroup or below it, and whether that is known.
func (c Cgroup) HoldsOwn() (inside, known bool, err error) {
	mounts, own, err := ownView()
	if err != nil {
		return false, false, err
	}
	inside, known = serves(c.Path, mounts, own)
	return inside, known, nil
}

// serves reports whether this process is in the cgroup at path or below it, and whether that is
// known.
func serves(path string, mounts []cgroupMount, own cgroupPath) (inside, known bool) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	longest := -1
	var served cgroupPath
	for _, mount := range mounts {
		rest, ok := strings.CutPrefix(path, strings.TrimSuffix(mount.path, "/"))
		// Of two mounts on one directory, the later one is visible.
		if !ok || rest != "" && rest[0] != '/' || len(mount.path) < longest {
			continue
		}
		longest = len(mount.path)
		served = parseCgroupPath(mount.root.String() + rest)
	}
	if longest < 0 {
		return false, false
	}
	return served.holds(own)
}
