package rig

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mount holds the fields of a mountinfo line that the rig needs.
type mount struct {
	path, kind string
	writable   bool
}

func readMounts() ([]mount, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parseMounts(string(content))
}

// parseMounts parses the format of /proc/self/mountinfo: a varying number of fields comes before
// the lone dash.
func parseMounts(mountinfo string) ([]mount, error) {
	var mounts []mount
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 6 || len(fields) < dash+2 {
			return nil, fmt.Errorf("read mounts: line %q has another form", line)
		}
		mounts = append(mounts, mount{
			path:     unescape(fields[4]),
			kind:     fields[dash+1],
			writable: slices.Contains(strings.Split(fields[5], ","), "rw"),
		})
	}
	return mounts, nil
}

// unescape decodes the octal escapes that keep a path with spaces in one field.
func unescape(field string) string {
	var b strings.Builder
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if code, err := strconv.ParseUint(field[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		b.WriteByte(field[i])
	}
	return b.String()
}

// BPFFS returns the directory of a new BPF file system, which is unmounted when the test ends.
func BPFFS(t T) string {
	t.Helper()
	dir, unmount, err := MountBPFFS()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return dir
}

// MountBPFFS mounts a new BPF file system on a new directory. Unmounting it removes what is pinned
// in it.
func MountBPFFS() (dir string, unmount func() error, err error) {
	if dir, err = os.MkdirTemp("", ownPrefix()+"bpffs-"); err != nil {
		return "", nil, fmt.Errorf("mount bpffs: %w", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		_ = os.Remove(dir) // an empty temporary directory: only the mount's error matters
		return "", nil, fmt.Errorf("mount bpffs on %s: %w", dir, err)
	}
	unmount = func() error {
		// A process that another test is just starting holds our open files until it has called
		// exec, and for that long a plain unmount fails. Detached, the file system disappears at
		// once and is freed with its last user.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount bpffs %s: %w", dir, err)
		}
		return os.Remove(dir)
	}
	return dir, unmount, nil
}
