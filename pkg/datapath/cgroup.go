package datapath

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoCgroup is wrapped by Open's error when no cgroup2 tree is mounted.
var ErrNoCgroup = errors.New("no cgroup2 filesystem is mounted")

// cgroup is a directory of the cgroup2 tree.
type cgroup struct {
	path string
	id   uint64
}

// findCgroup returns the cgroup at path, or the root of the tree that is mounted when path is empty.
func findCgroup(path string) (cgroup, error) {
	if path == "" {
		mounts, err := os.Open("/proc/self/mountinfo")
		if err != nil {
			return cgroup{}, fmt.Errorf("find cgroup root: %w", err)
		}
		defer mounts.Close()
		if path, err = cgroupRoot(mounts); err != nil {
			return cgroup{}, fmt.Errorf("find cgroup root: %w", err)
		}
	}
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

// cgroupRoot returns the mount that reaches highest in the cgroup2 tree, of those listed as in /proc/self/mountinfo. It
// does not matter whether v1 hierarchies are mounted beside it.
func cgroupRoot(mountinfo io.Reader) (string, error) {
	best, height := "", 0
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		mount, super, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if !ok || len(fields) < 5 || !strings.HasPrefix(super, "cgroup2 ") {
			continue
		}
		if h := rootHeight(fields[3]); best == "" || h > height {
			best, height = unescape(fields[4]), h
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if best == "" {
		return "", fmt.Errorf("%w; mount it with \"mount -t cgroup2 none /sys/fs/cgroup/unified\", or name a directory "+
			"of it with --cgroup-root", ErrNoCgroup)
	}
	return best, nil
}

// rootHeight tells how high above our own cgroup namespace the root of a mount lies: in a container with a namespace of
// its own "/" is merely the container, and the host's tree shows as "/../..". What lies below counts as negative.
func rootHeight(root string) int {
	height := 0
	for part := range strings.SplitSeq(root, "/") {
		switch part {
		case "":
		case "..":
			height++
		default:
			height--
		}
	}
	return height
}

// unescape undoes the octal escapes of blanks and backslashes in mountinfo.
func unescape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if code, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}
