package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Contained turns into another child process in its own mount namespace, and optionally its own
// cgroup namespace, with cgroup2 mounted elsewhere. Its arguments are "own" or "host" for the
// cgroup namespace, the layout, a directory it may use, and the other child with its arguments.
func Contained(args []string) error {
	runtime.LockOSThread()
	flags := unix.CLONE_NEWNS | unix.CLONE_FS
	if args[0] == "own" {
		flags |= unix.CLONE_NEWCGROUP
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := lay(args[1], args[2]); err != nil {
		return fmt.Errorf("lay out %s: %w", args[1], err)
	}
	return unix.Exec("/proc/self/exe", append([]string{os.Args[0]}, args[3:]...), os.Environ())
}

// lay replaces the mounts of cgroup2 by another layout below dir, in this mount namespace only.
func lay(layout, dir string) error {
	mounts, err := cgroupMounts()
	if err != nil || len(mounts) == 0 {
		return errors.Join(err, errors.New("the machine has no cgroup2"))
	}
	host, own := filepath.Join(dir, "host"), filepath.Join(dir, "own")
	bind := func(to string) error {
		return errors.Join(os.MkdirAll(to, 0o755), unix.Mount(mounts[0], to, "", unix.MS_BIND, ""))
	}
	var laid error
	switch layout {
	case "own":
		laid = errors.Join(os.Mkdir(own, 0o755), unix.Mount("cgroup2", own, "cgroup2", 0, ""))
	case "own and host":
		laid = errors.Join(os.Mkdir(own, 0o755), unix.Mount("cgroup2", own, "cgroup2", 0, ""), bind(host))
	case "read-only":
		laid = errors.Join(bind(host), unix.Mount("", host, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	case "hybrid":
		laid = errors.Join(os.Mkdir(host, 0o755), unix.Mount("tmpfs", host, "tmpfs", 0, ""), bind(filepath.Join(host, "unified")))
	case "hidden":
		laid = errors.Join(bind(host), unix.Mount("tmpfs", host, "tmpfs", 0, ""))
	}
	if laid != nil {
		return laid
	}
	for _, mount := range mounts {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", mount, err)
		}
	}
	return nil
}

// cgroupMounts returns where cgroup2 is mounted, as this thread sees it.
func cgroupMounts() (paths []string, err error) {
	machine, err := os.ReadFile("/proc/thread-self/mountinfo")
	for line := range strings.Lines(string(machine)) {
		const path = 4
		if words := strings.Fields(line); len(words) > path && strings.Contains(line, " - cgroup2 ") {
			paths = append(paths, words[path])
		}
	}
	return paths, err
}
