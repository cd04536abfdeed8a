package datapath

import (
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// With the capabilities of the agent, every network namespace is found by the inode number of its
// file. Other numbers find none.
func TestNetnsFinder(t *testing.T) {
	rig.Root(t)
	want := map[uint64]uint64{}
	for range 20 {
		ns := rig.NewNetns(t, "pod")
		if err := ns.Do(func() error {
			var info unix.Stat_t
			if err := unix.Stat("/proc/thread-self/ns/net", &info); err != nil {
				return err
			}
			cookie, err := HostNetns()
			want[info.Ino] = cookie
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := limited.Do(func() error {
		if err := limited.Check(); err != nil {
			return err
		}
		finder, err := NewNetnsFinder()
		if err != nil {
			return err
		}
		for number, cookie := range want {
			if id, err := finder.Cookie(number); err != nil || id != cookie {
				t.Errorf("%d: found %d, %v, want %d", number, id, err, cookie)
			}
		}
		for _, number := range []uint64{0, 1, 1<<32 - 1} {
			if id, err := finder.Cookie(number); err == nil {
				t.Errorf("number %d: found %d", number, id)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
