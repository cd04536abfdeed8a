package datapath

import (
	"errors"
	"strings"
	"testing"
)

func TestCgroupRoot(t *testing.T) {
	const (
		v1      = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
		unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid  = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		part    = "50 31 0:38 /kubepods/pod1 /run/part rw - cgroup2 cgroup2 rw\n"
		host    = "51 31 0:38 /../../.. /host/cgroup rw - cgroup2 cgroup2 rw\n"
		blank   = "52 31 0:38 / /mnt/my\\040cgroups rw - cgroup2 cgroup2 rw\n"
	)
	for _, test := range []struct{ name, mounts, want string }{
		{"unified", unified, "/sys/fs/cgroup"},
		{"hybrid", v1 + hybrid, "/sys/fs/cgroup/unified"},
		{"part of the tree comes first", part + hybrid, "/sys/fs/cgroup/unified"},
		{"part of the tree is all there is", v1 + part, "/run/part"},
		{"host's tree in a namespace of our own", unified + host, "/host/cgroup"},
		{"two roots", hybrid + unified, "/sys/fs/cgroup/unified"},
		{"blank in the path", blank, "/mnt/my cgroups"},
		{"lines that are cut off", "30 23\n - cgroup2\n" + hybrid, "/sys/fs/cgroup/unified"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := cgroupRoot(strings.NewReader(test.mounts))
			if err != nil || got != test.want {
				t.Errorf("cgroupRoot = %q, %v; want %q", got, err, test.want)
			}
		})
	}
	for _, mounts := range []string{"", v1} {
		if _, err := cgroupRoot(strings.NewReader(mounts)); !errors.Is(err, ErrNoCgroup) {
			t.Errorf("cgroupRoot(%q): %v", mounts, err)
		}
	}
}
