package optout

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

const uid = "0f3a5b7c-1b0e-4b64-8c54-0d5f4f2b1a10"

func TestCgroupsFind(t *testing.T) {
	rig.Root(t)
	slice := "pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	for _, test := range []struct {
		name string
		path string // of the pod's cgroup
	}{
		{"cgroupfs, guaranteed", "kubepods/pod" + uid},
		{"cgroupfs, burstable", "kubepods/burstable/pod" + uid},
		{"cgroupfs, best effort", "kubepods/besteffort/pod" + uid},
		{"systemd, guaranteed", "kubepods.slice/kubepods-" + slice},
		{"systemd, burstable", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-" + slice},
		{"systemd, below another slice", "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-" + slice},
		{"a node in a container", "system/node/kubepods/burstable/pod" + uid},
	} {
		t.Run(test.name, func(t *testing.T) {
			top := rig.NewCgroup(t)
			c := NewCgroups(top.Path())
			pod := &model.Pod{LocalUID: uid}
			if dirs := c.Dirs(); len(dirs) != 0 {
				t.Errorf("Dirs returns %v before Find is called", dirs)
			}
			if keys, err := c.Find(pod); !errors.Is(err, ErrUnknown) {
				t.Errorf("no kubelet: %v, %v", keys, err)
			}
			at := top
			for name := range strings.SplitSeq(test.path, "/") {
				at = rig.NewCgroupIn(t, at, name)
			}
			c.Refresh()
			keys, err := c.Find(pod)
			info, statErr := os.Stat(at.Path())
			if statErr != nil {
				t.Fatal(statErr)
			}
			want := maps.OptoutKey{Id: info.Sys().(*syscall.Stat_t).Ino, Kind: maps.OptoutCgroup}
			if err != nil || len(keys) != 1 || keys[0] != want {
				t.Errorf("found %v, %v, want %v", keys, err, want)
			}
			for _, other := range []string{"", "..", "../pod" + uid, "/../pod" + uid, uid + "0", "1f3a5b7c-1b0e-4b64-8c54-0d5f4f2b1a10", strings.Repeat("a", 300)} {
				if keys, err := c.Find(&model.Pod{LocalUID: other}); !errors.Is(err, ErrUnknown) {
					t.Errorf("%.40q: found %v, %v", other, keys, err)
				}
			}
		})
	}
}

// Beside cgroup v1 the directories may exist without processes in them. Then they identify no pod.
func TestCgroupsWithoutProcesses(t *testing.T) {
	rig.Root(t)
	top := rig.NewCgroup(t)
	at := rig.NewCgroupIn(t, rig.NewCgroupIn(t, top, "kubepods"), "pod"+uid)
	c := NewCgroups(top.Path())
	running := &model.Pod{LocalUID: uid, Addrs: addrs("10.1.0.7")}
	if keys, err := c.Find(running); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "no process") {
		t.Errorf("found %v, %v", keys, err)
	}
	rig.NewChild(t, rig.NewCgroupIn(t, at, "container"), nil, "wait")
	if keys, err := c.Find(running); err != nil || len(keys) != 1 {
		t.Errorf("with a process: found %v, %v", keys, err)
	}
}
