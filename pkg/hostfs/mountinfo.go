package hostfs

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// cgroupMount is a place where the cgroup2 tree, or a part of it, is mounted.
type cgroupMount struct {
	path string
	root cgroupPath // the part of the tree that is mounted there
}

// cgroupPath is a place in the cgroup2 tree as the kernel shows it to this process: relative to the
// root of our cgroup namespace, which in a container is just the container. Levels above it have no
// names; only their number is known.
type cgroupPath struct {
	up   int // levels above the root of the namespace
	down []string
}

func parseCgroupPath(text string) cgroupPath {
	var p cgroupPath
	for part := range strings.SplitSeq(text, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			p.down = append(p.down, part)
		case len(p.down) > 0:
			p.down = p.down[:len(p.down)-1]
		default:
			p.up++
		}
	}
	return p
}

// String returns the path in the kernel's format.
func (p cgroupPath) String() string {
	return "/" + strings.Join(append(strings.Split(strings.Repeat("../", p.up), "/")[:p.up], p.down...), "/")
}

// whole reports whether the whole visible tree is below p.
func (p cgroupPath) whole() bool { return len(p.down) == 0 }

// holds reports whether other is p or below it. known is false if that depends on names above our
// namespace, which the kernel does not show.
func (p cgroupPath) holds(other cgroupPath) (holds, known bool) {
	switch {
	case p.whole():
		return p.up >= other.up, true
	case p.up < other.up:
		return false, true
	case p.up > other.up:
		return false, false
	}
	if len(p.down) > len(other.down) {
		return false, true
	}
	for i, name := range p.down {
		if name != other.down[i] {
			return false, true
		}
	}
	return true, true
}

// cgroupMounts returns the cgroup2 mounts from a list in the format of /proc/self/mountinfo. It
// ignores other mounts, such as v1 hierarchies, and malformed lines.
func cgroupMounts(mountinfo io.Reader) ([]cgroupMount, error) {
	var mounts []cgroupMount
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20) // overlays with many layers make long lines
	for lines.Scan() {
		mount, super, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if !ok || len(fields) < 5 || !strings.HasPrefix(super, "cgroup2 ") {
			continue
		}
		root := unescape(fields[3])
		if !strings.HasPrefix(root, "/") || strings.HasSuffix(root, "//deleted") {
			continue
		}
		mounts = append(mounts, cgroupMount{path: unescape(fields[4]), root: parseCgroupPath(root)})
	}
	return mounts, lines.Err()
}

// unescape undoes the octal escapes of spaces and backslashes in mountinfo.
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
