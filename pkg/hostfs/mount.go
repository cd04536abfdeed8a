package hostfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mount is a file system that the agent needs.
type Mount struct {
	Kind    string `json:"kind"` // "bpf" or "cgroup2"
	Path    string `json:"path"`
	Mounted bool   `json:"mounted"` // it was mounted by this call
}

// mountFlags are the flags for file systems without executables and devices.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME

// MountBPFFS mounts a bpf filesystem at path unless there is one. It needs CAP_SYS_ADMIN, which an
// agent does not have.
func MountBPFFS(path string) (Mount, error) {
	done := Mount{Kind: "bpf", Path: path}
	if CheckBPFFS(path) == nil {
		return done, nil
	}
	if err := makeMountPoint(path); err != nil {
		return done, fmt.Errorf("mount bpf filesystem: %w", err)
	}
	if err := mountOn("bpf", path, "mode=0700"); err != nil {
		return done, err
	}
	done.Mounted = true
	return done, CheckBPFFS(path)
}

// MountCgroup mounts the cgroup2 tree at path, unless the tree's root is visible somewhere, or
// served, the directory that the agent should serve, is in a tree. It needs CAP_SYS_ADMIN.
func MountCgroup(path, served string) (Mount, error) {
	found, err := FindCgroup(served)
	if err == nil {
		return Mount{Kind: "cgroup2", Path: found.Path}, nil
	}
	done := Mount{Kind: "cgroup2", Path: path}
	if served != "" || !errors.Is(err, ErrNoCgroup) && !errors.Is(err, ErrPartOfTree) {
		return done, err
	}
	if err := makeMountPoint(path); err != nil {
		return done, fmt.Errorf("mount cgroup2: %w", err)
	}
	if err := mountOn("cgroup2", path, ""); err != nil {
		return done, err
	}
	// In a cgroup namespace of our own, a new mount shows only the cgroups below ours.
	if found, err = FindCgroup(""); err != nil {
		return done, errors.Join(fmt.Errorf("mount cgroup2 at %s: it shows only this container: %w", path, err), unmount(path))
	}
	done.Path, done.Mounted = found.Path, true
	return done, nil
}

// makeMountPoint creates the directory. It refuses one that is not empty, whose content the mount
// would hide. An empty one may be a mount itself, such as a volume of a container.
func makeMountPoint(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty, and the mount would hide its content: name another directory", path)
	}
	return nil
}

func mountOn(kind, path, options string) error {
	err := unix.Mount(kind, path, kind, mountFlags, options)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("mount %s at %s: %w; run in a privileged container or as root", kind, path, err)
	}
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("mount %s at %s: this kernel was built without that file system: %w", kind, path, err)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, path, err)
	}
	return nil
}

func unmount(path string) error {
	if err := unix.Unmount(path, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
