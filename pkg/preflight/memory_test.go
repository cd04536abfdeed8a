package preflight

import "testing"

// What counts against a limit is read in both versions of cgroups.
func TestMemoryUse(t *testing.T) {
	const two, one = "sys/fs/cgroup/kubepods/pod1/", "sys/fs/cgroup/memory/kubepods/pod1/"
	for _, tt := range []struct {
		name        string
		change      func(*machine)
		used, limit uint64
		where       string
	}{
		{"no limit", func(*machine) {}, 0, 0, ""},
		{"version 2", all(set(two+"memory.max", "1000"), set(two+"memory.current", "900\n"), set(two+"memory.stat", "anon 5\ninactive_file 100\n")),
			800, 1000, "/" + two + "memory.max"},
		{"version 1", all(set("proc/self/cgroup", "5:memory:/kubepods/pod1\n"), set(one+"memory.limit_in_bytes", "1000"), set(one+"memory.usage_in_bytes", "900"),
			set(one+"memory.stat", "inactive_file 1\ntotal_inactive_file 100\n")), 800, 1000, "/" + one + "memory.limit_in_bytes"},
		{"more idle than in use", all(set(two+"memory.max", "1000"), set(two+"memory.current", "9"), set(two+"memory.stat", "inactive_file 100\n")),
			0, 1000, "/" + two + "memory.max"},
		{"use not readable", set(two+"memory.max", "1000"), 0, 0, ""},
	} {
		m := sound()
		tt.change(m)
		m.check(t) // writes the files
		if used, limit, where := m.MemoryUse(); used != tt.used || limit != tt.limit || where != tt.where {
			t.Errorf("%s: %d of %d by %q", tt.name, used, limit, where)
		}
	}
}
