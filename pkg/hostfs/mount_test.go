package hostfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// runFind prints the path and id of the root that findCgroup finds.
func runFind([]string) error {
	found, err := FindCgroup("")
	if err != nil {
		return err
	}
	fmt.Println(found.Path, found.ID)
	return nil
}

// runMount mounts twice, as "fairlead init" does, and prints the results. If that fails, its error
// says whether a mount is left below the directory.
func runMount(args []string) error {
	at := filepath.Join(args[0], "new")
	for range 2 {
		done, err := MountCgroup(at, "")
		if err != nil {
			if _, opened := OpenCgroup(at); opened == nil {
				err = errors.Join(err, errors.New("and the mount is still there"))
			}
			return err
		}
		fmt.Println(done.Path, done.Mounted)
	}
	return nil
}

// wholeTree ends a test if the root of the cgroup tree is not visible, since the test compares with
// it.
func wholeTree(t *testing.T) {
	t.Helper()
	rig.Root(t)
	if found, err := FindCgroup(""); err != nil || found.ID != RootID {
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
