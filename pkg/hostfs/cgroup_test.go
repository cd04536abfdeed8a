package hostfs

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

const (
	v1      = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
	unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	hybrid  = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	part    = "50 31 0:38 /kubepods/pod1 /run/part rw - cgroup2 cgroup2 rw\n"
	sibling = "53 31 0:38 /../../kubepods /run/sibling rw - cgroup2 cgroup2 rw\n"
	host    = "51 31 0:38 /../../.. /host/cgroup ro - cgroup2 cgroup2 rw\n"
	blank   = "52 31 0:38 / /mnt/my\\040cgroups rw - cgroup2 cgroup2 rw\n"
	gone    = "54 31 0:38 /../../../..//deleted /run/gone rw - cgroup2 cgroup2 rw\n"
)

// opened fakes the directories of a machine by the id of each cgroup; a path without an id is not
// in a cgroup2.
func opened(ids map[string]uint64) func(string) (Cgroup, error) {
	return func(path string) (Cgroup, error) {
		if ids[path] == 0 {
			return Cgroup{}, fs.ErrInvalid
		}
		return Cgroup{path, ids[path]}, nil
	}
}

func TestCgroupRoot(t *testing.T) {
	machine := opened(map[string]uint64{
		"/sys/fs/cgroup": 1, "/sys/fs/cgroup/unified": 1, "/run/part": 77, "/run/sibling": 78, "/host/cgroup": 1, "/mnt/my cgroups": 1,
	})
	// A container's own mount is not the root. What it sees of the host may be the root, or the
	// root of a node in a container.
	container := opened(map[string]uint64{
		"/sys/fs/cgroup": 99, "/sys/fs/cgroup/unified": 99, "/run/part": 77, "/run/sibling": 78, "/host/cgroup": 50, "/run/gone": 60,
	})
	for _, test := range []struct {
		name, mounts, own string
		open              func(string) (Cgroup, error)
		want              string
		err               error
	}{
		{"unified", unified, "/system.slice/fairlead.service", machine, "/sys/fs/cgroup", nil},
		{"hybrid", v1 + hybrid, "/", machine, "/sys/fs/cgroup/unified", nil},
		{"container of a hybrid host", v1 + unified + host, "/", machine, "/host/cgroup", nil},
		{"part of the tree comes first", part + hybrid, "/", machine, "/sys/fs/cgroup/unified", nil},
		{"host's tree beside the container's", unified + host, "/", container, "/host/cgroup", nil},
		{"host's tree over the container's", unified + strings.ReplaceAll(host, "/host/cgroup", "/sys/fs/cgroup"), "/", container, "/sys/fs/cgroup", nil},
		{"two roots", hybrid + unified, "/", machine, "/sys/fs/cgroup/unified", nil},
		{"hidden by another mount", hybrid + blank, "/", opened(map[string]uint64{"/mnt/my cgroups": 1}), "/mnt/my cgroups", nil},
		{"blank in the path", blank, "/", machine, "/mnt/my cgroups", nil},
		{"service of a node that is a container", unified, "/system.slice/fairlead.service", container, "/sys/fs/cgroup", nil},
		{"lines that are cut off", "30 23\n - cgroup2\n1 2 3 4 5 - cgroup2 x\n" + hybrid, "/", machine, "/sys/fs/cgroup/unified", nil},
		{"a very long line", "1 2 0:1 / /x rw - overlay overlay lowerdir=" + strings.Repeat("/l:", 1<<16) + "\n" + hybrid, "/", machine, "/sys/fs/cgroup/unified", nil},
		{"the container's own tree", unified, "/", container, "", ErrPartOfTree},
		{"part of the tree is all there is", v1 + part, "/", container, "", ErrPartOfTree},
		{"another branch is all there is", v1 + sibling + gone, "/", container, "", ErrPartOfTree},
		{"a mount of what was removed", gone, "/", container, "", ErrNoCgroup},
		{"all are hidden", hybrid, "/", opened(nil), "", fs.ErrInvalid},
		{"no mount", "", "/", machine, "", ErrNoCgroup},
		{"v1 alone", v1, "/", machine, "", ErrNoCgroup},
	} {
		t.Run(test.name, func(t *testing.T) {
			mounts, err := cgroupMounts(strings.NewReader(test.mounts))
			if err != nil {
				t.Fatal(err)
			}
			got, err := cgroupRoot(mounts, parseCgroupPath(test.own), test.open)
			if !errors.Is(err, test.err) || got.Path != test.want {
				t.Errorf("cgroupRoot = %q, %v; want %q, %v", got.Path, err, test.want, test.err)
			}
		})
	}
}

func TestServes(t *testing.T) {
	mounts, err := cgroupMounts(strings.NewReader(unified + hybrid + part + sibling + host + blank))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, path, own string
		inside, known   bool
	}{
		{"root", "/sys/fs/cgroup", "/a/b", true, true},
		{"own", "/sys/fs/cgroup/a/b", "/a/b", true, true},
		{"above", "/sys/fs/cgroup/a", "/a/b", true, true},
		{"below", "/sys/fs/cgroup/a/b/c", "/a/b", false, true},
		{"beside", "/sys/fs/cgroup/a/bb", "/a/b", false, true},
		{"a name that begins like it", "/sys/fs/cgroup/a/b", "/a/bb", false, true},
		{"mount in a mount", "/sys/fs/cgroup/unified/a", "/a", true, true},
		{"mounted part", "/run/part", "/kubepods/pod1/x", true, true},
		{"below a mounted part", "/run/part/x", "/kubepods/pod1/x", true, true},
		{"beside a mounted part", "/run/part", "/kubepods/pod2", false, true},
		{"host's tree from a container", "/host/cgroup", "/", true, true},
		{"part of the host's tree from a container", "/host/cgroup/kubepods", "/", false, false},
		{"outside of our namespace", "/sys/fs/cgroup", "/../x", false, true},
		{"both outside of our namespace", "/run/sibling", "/../../kubepods/pod1", true, true},
		{"no cgroup2", "/proc", "/", false, false},
		{"a path that begins like a mount", "/run/parties", "/", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			inside, known := serves(test.path, mounts, parseCgroupPath(test.own))
			if inside != test.inside || known != test.known {
				t.Errorf("inside %v, known %v; want %v, %v", inside, known, test.inside, test.known)
			}
		})
	}
}

func TestCgroupPath(t *testing.T) {
	for text, want := range map[string]string{
		"/": "/", "": "/", "/..": "/..", "/../..": "/../..", "/a/b": "/a/b", "/../../a": "/../../a", "//a//.": "/a", "/a/../../b": "/../b",
	} {
		if got := parseCgroupPath(text).String(); got != want {
			t.Errorf("parseCgroupPath(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestOwnCgroup(t *testing.T) {
	for list, want := range map[string]string{
		"0::/a/b\n":                        "/a/b",
		"4:memory:/x\n1:cpu:/y\n0::/\n":    "/",
		"1:name=systemd:/z\n":              "/",
		"0::/../../kubepods/pod (deleted)": "/../../kubepods/pod",
		"":                                 "/",
	} {
		if got := ownCgroup([]byte(list)).String(); got != want {
			t.Errorf("ownCgroup(%q) = %q, want %q", list, got, want)
		}
	}
}
