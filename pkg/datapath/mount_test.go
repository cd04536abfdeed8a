package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// runContained turns into another child process in its own mount namespace, and optionally its own
// cgroup namespace, with cgroup2 mounted elsewhere. Its arguments are "own" or "host" for the
// cgroup namespace, the layout, a directory it may use, and the other child with its arguments.
func runContained(args []string) error {
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
	machine, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	mounts, err := cgroupMounts(strings.NewReader(string(machine)))
	if err != nil || len(mounts) == 0 {
		return errors.Join(err, errors.New("the machine has no cgroup2"))
	}
	host, own := filepath.Join(dir, "host"), filepath.Join(dir, "own")
	bind := func(to string) error {
		return errors.Join(os.MkdirAll(to, 0o755), unix.Mount(mounts[0].path, to, "", unix.MS_BIND, ""))
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
		if err := unix.Unmount(mount.path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", mount.path, err)
		}
	}
	return nil
}

// runFind prints the path and id of the root that findCgroup finds.
func runFind([]string) error {
	found, err := findCgroup("")
	if err != nil {
		return err
	}
	fmt.Println(found.path, found.id)
	return nil
}

// runMount mounts twice, as "fairlead init" does, and prints the results. If that fails, its error
// says whether a mount is left below the directory.
func runMount(args []string) error {
	at := filepath.Join(args[0], "new")
	for range 2 {
		done, err := MountCgroup(at, "")
		if err != nil {
			if _, opened := openCgroup(at); opened == nil {
				err = errors.Join(err, errors.New("and the mount is still there"))
			}
			return err
		}
		fmt.Println(done.Path, done.Mounted)
	}
	return nil
}

// runServe attaches to a cgroup and prints whether its own dials meet the programs. Its arguments
// are the bpf filesystem and the cgroup.
func runServe(args []string) error {
	d, err := Open(Config{BPFFS: args[0], CgroupRoot: args[1]})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := errors.Join(d.Create(maps.Sizes{}), d.Attach()); err != nil {
		return err
	}
	for _, p := range d.attached.Proofs {
		fmt.Print(p.Family, " ", p.State, " ", p.Why, "; ")
	}
	return d.attached.Err
}

// wholeTree ends a test if the root of the cgroup tree is not visible, since the test compares with
// it.
func wholeTree(t *testing.T) {
	t.Helper()
	rig.Root(t)
	if found, err := findCgroup(""); err != nil || found.id != rootID {
		rig.Lacking(t, "root", fmt.Sprintf("this machine is a container that shows only part of the cgroups (%+v, %v)", found, err))
	}
}

// findCgroup finds the root of the real tree in every layout and from inside a container, or says
// why it cannot. Nothing is attached.
func TestFindCgroup(t *testing.T) {
	wholeTree(t)
	for _, test := range []struct {
		namespace, layout string
		want              string // below the directory
		err               string
	}{
		{"host", "hybrid", "host/unified 1", ""},
		{"host", "own", "own 1", ""}, // mounted again, it is the machine's tree
		{"host", "hidden", "", "that can be opened"},
		{"host", "none", "", ErrNoCgroup.Error()},
		{"own", "own", "", ErrPartOfTree.Error()},
		{"own", "own and host", "host 1", ""},
		{"own", "read-only", "host 1", ""},
		{"own", "hybrid", "host/unified 1", ""},
		{"own", "none", "", ErrNoCgroup.Error()},
	} {
		t.Run(test.namespace+" namespace, "+test.layout, func(t *testing.T) {
			dir := t.TempDir()
			out, err := rig.RunChild(rig.NewCgroup(t), nil, "contained", test.namespace, test.layout, dir, "find")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("found %q, %v; want %q", out, err, test.err)
				}
				return
			}
			if want := filepath.Join(dir, test.want) + "\n"; err != nil || out != want {
				t.Errorf("found %q, %v; want %q", out, err, want)
			}
		})
	}
}

func TestMountCgroup(t *testing.T) {
	wholeTree(t)
	for _, test := range []struct {
		namespace, layout string
		want              string // "DIR" stands for the directory
		err               string
	}{
		{"host", "none", "DIR/new true\nDIR/new false\n", ""},
		{"host", "hidden", "DIR/new true\nDIR/new false\n", ""},
		{"host", "hybrid", "DIR/host/unified false\nDIR/host/unified false\n", ""},
		{"own", "own and host", "DIR/host false\nDIR/host false\n", ""},
		{"own", "own", "", "it shows only this container"},
		{"own", "none", "", "it shows only this container"},
	} {
		t.Run(test.namespace+" namespace, "+test.layout, func(t *testing.T) {
			dir := t.TempDir()
			out, err := rig.RunChild(rig.NewCgroup(t), nil, "contained", test.namespace, test.layout, dir, "mount", dir)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "still there") {
					t.Errorf("mounted %q, %v; want %q", out, err, test.err)
				}
				return
			}
			if want := strings.ReplaceAll(test.want, "DIR", dir); err != nil || out != want {
				t.Errorf("mounted %q, %v; want %q", out, err, want)
			}
		})
	}
}

// From inside a container that sees the host's tree read-only, programs can be attached and proven.
func TestAttachInContainer(t *testing.T) {
	for _, layout := range []string{"read-only", "hybrid", "own and host"} {
		t.Run(layout, func(t *testing.T) {
			p, dir := newMounts(t), t.TempDir()
			pod := rig.NewCgroupIn(t, p.cgroup, "pod")
			served := filepath.Join(dir, "host", filepath.Base(p.CgroupRoot))
			if layout == "hybrid" {
				served = filepath.Join(dir, "host/unified", filepath.Base(p.CgroupRoot))
			}
			out := rig.Child(t, pod, nil, "contained", "own", layout, dir, "serve", p.BPFFS, served)
			if out != "IPv4 proven ; IPv6 proven ; " {
				t.Errorf("found %q", out)
			}
		})
	}
}

func TestMountBPFFS(t *testing.T) {
	rig.Root(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := MountBPFFS(dir); err == nil || !strings.Contains(err.Error(), "would hide its content") {
		t.Errorf("over a file: %+v, %v", done, err)
	}
	other := filepath.Join(dir, "other")
	if err := errors.Join(os.Mkdir(other, 0o700), unix.Mount("tmpfs", other, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for unmount(other) == nil { // first what was mounted on it, then itself
		}
	})
	file := filepath.Join(other, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := MountBPFFS(other); err == nil || !strings.Contains(err.Error(), "would hide its content") {
		t.Errorf("over another file system: %+v, %v", done, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if done, err := MountBPFFS(other); err != nil || !done.Mounted {
		t.Errorf("over an empty volume: %+v, %v", done, err)
	}
	at := filepath.Join(dir, "new", "bpf")
	t.Cleanup(func() { _ = unmount(at) })
	for _, want := range []bool{true, false} {
		if done, err := MountBPFFS(at); err != nil || done.Mounted != want || CheckBPFFS(at) != nil {
			t.Errorf("%+v, %v; want mounted %v", done, err, want)
		}
	}
	pinned := filepath.Join(at, "something")
	if err := os.Mkdir(pinned, 0o700); err != nil {
		t.Fatal(err)
	}
	if done, err := MountBPFFS(at); err != nil || done.Mounted {
		t.Errorf("with something in it: %+v, %v", done, err)
	}
	if _, err := os.Stat(pinned); err != nil {
		t.Error(err)
	}
}
