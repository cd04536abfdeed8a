// Package node makes a node out of namespaces: its first process, which sets up a file system like
// a machine's own, and the configuration of the programs that run on the node.
package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Ready is the line by which the first process of a node reports that the node is set up.
const Ready = "ready\n"

// Init is the first process of a node. It expects its own mount, PID and UTS namespaces and the
// network namespace of the node. It sets up the node's file system from the directory state, writes
// Ready to out, and then reaps orphaned processes; it only returns with an error. When it ends, so
// does everything on the node.
func Init(name, state string, out io.Writer) error {
	if os.Getpid() != 1 {
		return errors.New("start node: this is not the first process of a process namespace")
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	// Mounts made here must not appear on the machine.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	layout := []func() error{
		func() error { return mount("proc", "/proc", "proc", 0, "") },
		func() error { return mountSys(state) },
		func() error { return mountFiles(state) },
		func() error { return writeIdentity(name) },
		// From here on mounts propagate between pods and the node, if a pod asks for it.
		func() error { return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") },
	}
	for _, step := range layout {
		if err := step(); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, Ready); err != nil {
		return fmt.Errorf("report that the node is ready: %w", err)
	}
	return reap()
}

// mountSys mounts a /sys that shows the devices of the node's network namespace. It mounts no BPF
// file system: the agent's init container does, as on a node where nothing else has.
func mountSys(state string) error {
	cgroups := filepath.Join(state, "cgroup")
	if err := os.MkdirAll(cgroups, 0o755); err != nil {
		return fmt.Errorf("lay out node: %w", err)
	}
	steps := []func() error{
		func() error { return mount("/sys/fs/cgroup", cgroups, "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return mount("sysfs", "/sys", "sysfs", 0, "") },
		func() error { return mount(cgroups, "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, "") },
		func() error { return unix.Unmount(cgroups, unix.MNT_DETACH) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	for _, kind := range []string{"tracing", "debug"} { // for debugging programs; the kernel may lack them
		err := mount(kind, "/sys/kernel/"+kind, strings.Replace(kind, "ing", "e", 1)+"fs", 0, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}

// mountFiles gives the node the machine's /etc, /opt and /var, whose changes are kept in overlays
// as on the node's own disk, and a /run in memory.
func mountFiles(state string) error {
	real, err := openReal(state)
	if err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(state, "etc"))
	isNew := errors.Is(err, fs.ErrNotExist)
	if err != nil && !isNew {
		return fmt.Errorf("lay out node: %w", err)
	}
	for _, dir := range []string{"etc", "opt", "var"} {
		upper, work := filepath.Join(state, dir), filepath.Join(state, dir+".work")
		for _, d := range []string{upper, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return fmt.Errorf("lay out node: %w", err)
			}
		}
		if err := mount("overlay", "/"+dir, "overlay", 0, "lowerdir=/"+dir+",upperdir="+upper+",workdir="+work); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=256m"); err != nil {
		return err
	}
	for _, dir := range []string{"/run/netns", "/run/lock", "/var/lib/cni", "/var/log/pods", "/var/log/containers"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("lay out node: %w", err)
		}
	}
	if target, err := os.Readlink("/var/run"); err != nil || filepath.Clean(filepath.Join("/var", target)) != "/run" && target != "/run" {
		if err := mount("/run", "/var/run", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	if isNew {
		if err := forgetPlugins(); err != nil {
			return err
		}
	}
	return real.bind()
}

// forgetPlugins hides what the machine's own plugins and container runtime left in /etc and /opt.
func forgetPlugins() error {
	for _, dir := range []string{"/etc/cni/net.d", "/opt/cni/bin"} {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
			return fmt.Errorf("lay out node: %w", err)
		}
	}
	return nil
}

// realDirs are directories that must not be on an overlay, since containers' file systems are
// themselves overlays over them.
type realDirs map[string]*os.File

// openReal opens the directories before mounts cover the paths that lead to them. The container
// runtime's directory stays from run to run, with the images that it has unpacked.
func openReal(state string) (realDirs, error) {
	real := realDirs{}
	for name, path := range map[string]string{"kubelet": "/var/lib/kubelet", "containerd": "/var/lib/containerd"} {
		dir := filepath.Join(state, name)
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("lay out node: %w", err)
		}
		file, err := os.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("lay out node: %w", err)
		}
		real[path] = file
	}
	return real, nil
}

func (r realDirs) bind() error {
	for path, file := range r {
		if err := os.MkdirAll(path, 0o711); err != nil {
			return fmt.Errorf("lay out node: %w", err)
		}
		if err := mount("/proc/self/fd/"+strconv.Itoa(int(file.Fd())), path, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		file.Close()
	}
	return nil
}

// writeIdentity writes the files that differ between machines. No resolver is configured, since
// there are no outside names to resolve.
func writeIdentity(name string) error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return fmt.Errorf("make machine id: %w", err)
	}
	for path, content := range map[string]string{
		"/etc/hostname":    name + "\n",
		"/etc/hosts":       "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 " + name + "\n",
		"/etc/machine-id":  strings.ReplaceAll(string(id), "-", ""),
		"/etc/resolv.conf": "",
	} {
		// The file may be a dangling link, or be mounted by a container engine.
		_ = unix.Unmount(path, unix.MNT_DETACH)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write identity: %w", err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write identity: %w", err)
		}
	}
	return nil
}

// reap waits forever for children, including orphans that it inherited. Nothing on the node can
// stop it.
func reap() error {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for { // one signal may stand for several
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s %s on %s: %w", kind, source, target, err)
	}
	return nil
}
