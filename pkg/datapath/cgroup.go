package datapath

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
	// ErrNoCgroup is wrapped by Open's error when no cgroup2 tree is mounted.
	ErrNoCgroup = errors.New("no cgroup2 filesystem is mounted")

	// ErrPartOfTree is wrapped by Open's error when the only cgroups that can be seen are this container's own, or some
	// others: programs there would serve next to nobody, and nobody would notice.
	ErrPartOfTree = errors.New("only a part of the cgroup2 tree can be seen")
)

// rootID is the id of the one cgroup that has no parent.
const rootID = 1

// goneID is the id of no cgroup.
const goneID = math.MaxUint64

// cgroup is a directory of the cgroup2 tree.
type cgroup struct {
	path string
	id   uint64
}

// findCgroup returns the cgroup at path, or the root of the tree that is mounted when path is empty.
func findCgroup(path string) (cgroup, error) {
	if path != "" {
		return openCgroup(path)
	}
	mounts, own, err := ownView()
	if err != nil {
		return cgroup{}, fmt.Errorf("find cgroup root: %w", err)
	}
	found, err := cgroupRoot(mounts, own, openCgroup)
	if err != nil {
		return cgroup{}, fmt.Errorf("find cgroup root: %w", err)
	}
	return found, nil
}

// CgroupRoot returns the cgroup that an agent would attach to, if it is told path.
func CgroupRoot(path string) (string, error) {
	found, err := findCgroup(path)
	return found.path, err
}

func openCgroup(path string) (cgroup, error) {
	var fsInfo unix.Statfs_t
	if err := unix.Statfs(path, &fsInfo); err != nil {
		return cgroup{}, fmt.Errorf("check cgroup %s: %w", path, err)
	}
	if fsInfo.Type != unix.CGROUP2_SUPER_MAGIC {
		return cgroup{}, fmt.Errorf("check cgroup %s: not in a cgroup2 filesystem; programs cannot be attached to cgroup v1",
			path)
	}
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		return cgroup{}, fmt.Errorf("check cgroup %s: %w", path, err)
	}
	return cgroup{path: path, id: info.Ino}, nil
}

// ownView returns the mounts of cgroup2 that this process sees, and its own place in the tree.
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

// ownCgroup returns the cgroup2 among the cgroups of a process, listed as in /proc/self/cgroup. A kernel that does not
// list it has had no use for it yet: then every process is at the root.
func ownCgroup(list []byte) cgroupPath {
	for line := range bytes.Lines(list) {
		if path, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("0::")); ok {
			return parseCgroupPath(strings.TrimSuffix(string(path), " (deleted)"))
		}
	}
	return cgroupPath{}
}

// cgroupRoot returns the root of the tree among its mounts. A mount may be hidden by another on top, so every one is
// opened. In a container with a cgroup namespace of its own "/" is merely the container, unless that is the whole
// machine's, and the host's tree shows as "/../..".
func cgroupRoot(mounts []cgroupMount, own cgroupPath, open func(path string) (cgroup, error)) (cgroup, error) {
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
		case found.id == rootID || mount.root.whole() && (mount.root.up > 0 || !own.whole()):
			return found, nil
		default:
			part = cmp.Or(part, found.path)
		}
	}
	switch {
	case part != "":
		return cgroup{}, fmt.Errorf("%w, at %s: let the container see the node's (a hostPath volume of /sys/fs/cgroup), or name "+
			"a directory with --cgroup-root if its processes alone are to be served", ErrPartOfTree, part)
	case failed != nil:
		return cgroup{}, fmt.Errorf("%w where it can be opened: %w; \"fairlead init\" mounts it anew", ErrNoCgroup, failed)
	}
	return cgroup{}, fmt.Errorf("%w; \"fairlead init\" mounts it, or name a directory of it with --cgroup-root", ErrNoCgroup)
}

// serves reports whether this process is in the cgroup at path or below it, as far as it can tell, and where it is.
func serves(path string, mounts []cgroupMount, own cgroupPath) (inside, known bool) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	longest := -1
	var served cgroupPath
	for _, mount := range mounts {
		rest, ok := strings.CutPrefix(path, strings.TrimSuffix(mount.path, "/"))
		// Of two mounts on one directory the later one is seen.
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
