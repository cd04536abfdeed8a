package datapath

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

var errBoom = errors.New("boom")

// failing makes p fail at the step that *step names.
func (p *mounts) failing(step *string) {
	p.failpoint = func(at string) error {
		if at == *step {
			return errBoom
		}
		return nil
	}
}

func attachSteps(t *testing.T) []string {
	t.Helper()
	list := slices.DeleteFunc(steps(t), func(step string) bool { return !strings.HasPrefix(step, "attach: ") })
	if len(list) != 6 {
		t.Fatalf("want two steps for each of three hooks: %q", list)
	}
	return list
}

// If the first Attach fails at any step, it leaves nothing behind, and the next one works.
func TestAttachFails(t *testing.T) {
	for _, fail := range attachSteps(t) {
		t.Run(fail, func(t *testing.T) {
			p, step := newMounts(t), fail
			p.failing(&step)
			d := open(t, p.Config)
			if err := d.Create(maps.Sizes{}); err != nil {
				t.Fatal(err)
			}
			before := files(t, p.BPFFS)
			if err := d.Attach(); !errors.Is(err, errBoom) {
				t.Fatalf("Attach: %v", err)
			}
			if diff := cmp.Diff(before, files(t, p.BPFFS)); diff != "" {
				t.Errorf("pins (-before +after):\n%s", diff)
			}
			eventually(t, "no program", func() bool { return attached(t, p.CgroupRoot) == 0 })
			step = ""
			if err := errors.Join(d.Attach(), serve(d.Tables(), p.backend)); err != nil {
				t.Fatal(err)
			}
			if !connects(t, p) {
				t.Error("cannot reach the service")
			}
			checkPins(t, p)
		})
	}
}

// An Attach that fails while moving to another cgroup leaves the programs where they were.
func TestAttachFailsToMove(t *testing.T) {
	for _, fail := range attachSteps(t) {
		t.Run(fail, func(t *testing.T) {
			p, step := newMounts(t), fail
			before := running(t, p)
			links := status(t, before).Programs
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			moved := p
			moved.cgroup = rig.NewCgroup(t)
			moved.CgroupRoot = moved.cgroup.Path()
			moved.failing(&step)
			d := open(t, moved.Config)
			if err := d.Attach(); !errors.Is(err, errBoom) {
				t.Fatalf("Attach: %v", err)
			}
			eventually(t, "the new cgroup without programs", func() bool { return attached(t, moved.CgroupRoot) == 0 })
			checkPins(t, p)
			for i, now := range status(t, d).Programs {
				if now.ID != links[i].ID {
					t.Errorf("%s runs another program", now.Name)
				}
			}
			if !connects(t, p) {
				t.Error("cannot reach the service from the old cgroup")
			}
			step = ""
			if err := d.Attach(); err != nil {
				t.Fatal(err)
			}
			if !connects(t, moved) {
				t.Error("cannot reach the service from the new cgroup")
			}
			eventually(t, "the old cgroup without programs", func() bool { return attached(t, p.CgroupRoot) == 0 })
		})
	}
}

// An Attach that fails half way through switching programs restores those that this process loaded.
// It cannot get hold of an earlier process's programs to restore them, so then it switches all it
// can. Either way, the next Attach finishes.
func TestAttachFailsToSwitch(t *testing.T) {
	names := hooks(t)
	for _, fail := range []int{0, len(names) / 2, len(names) - 1} {
		for _, ours := range []bool{true, false} {
			t.Run(names[fail]+map[bool]string{true: " of this process", false: " of an earlier process"}[ours], func(t *testing.T) {
				p, step := newMounts(t), ""
				p.failing(&step)
				d := running(t, p)
				if !ours {
					if err := d.Close(); err != nil {
						t.Fatal(err)
					}
					d = open(t, p.Config)
				}
				before := status(t, d)
				step = "attach: " + names[fail]
				if err := d.Attach(); !errors.Is(err, errBoom) {
					t.Fatalf("Attach: %v", err)
				}
				for i, now := range status(t, d).Programs {
					if same := now.ID == before.Programs[i].ID; same != (ours || i == fail) {
						t.Errorf("%s: it runs the same program: %v", now.Name, same)
					}
					if !now.Attached {
						t.Errorf("%s is not attached", now.Name)
					}
				}
				if !connects(t, p) {
					t.Error("cannot reach the service")
				}
				step = ""
				if err := d.Attach(); err != nil {
					t.Fatal(err)
				}
				for i, now := range status(t, d).Programs {
					if !now.Attached || now.ID == before.Programs[i].ID {
						t.Errorf("its program was not switched: %+v", now)
					}
				}
				checkPins(t, p)
			})
		}
	}
}

// checkPins checks that every hook has a pin and that nothing else is left.
func checkPins(t *testing.T, p mounts) {
	t.Helper()
	var have []string
	for _, file := range files(t, p.BPFFS) {
		if name, ok := strings.CutPrefix(file, "fairlead/v1/links/"); ok {
			have = append(have, name)
		}
	}
	if diff := cmp.Diff(hooks(t), have); diff != "" {
		t.Errorf("pinned links (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(newPins(p.BPFFS).stage); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the staging directory still exists: %v", err)
	}
}
