package preflight

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// agentBytes is what an agent needs besides its maps, with a margin for a large cluster.
const agentBytes = 96 << 20

// memory compares the size of the maps with the memory available: maps count against the pod of the
// agent that creates them.
func (n *Node) memory() Line {
	const check = "memory"
	maps, err := n.Memory()
	if err != nil {
		return unknown(check, err)
	}
	total, err := n.totalMemory()
	if err != nil {
		return unknown(check, err)
	}
	start, most := maps.Start+agentBytes, maps.Most+agentBytes
	found := fmt.Sprintf("maps use %s, and %s with the maximum number of flows; the machine has %s", mib(maps.Start), mib(maps.Most), mib(total))
	limit, where := n.memoryLimit()
	if where != "" {
		found += fmt.Sprintf(", and this process is limited to %s (%s)", mib(limit), where)
	}
	cure := fmt.Sprintf("give the agent %s (resources.limits.memory), or fewer flows (--conntrack-max)", mib(most))
	switch {
	case where != "" && limit < start:
		return Line{check, Fail, found, cure}
	case where != "" && limit < most:
		return Line{check, Warn, found, cure}
	case total/4 < most:
		return Line{check, Warn, found, "allow fewer flows (--conntrack-max)"}
	}
	return Line{check, OK, found, ""}
}

func (r Root) totalMemory() (uint64, error) {
	text, err := r.read("proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "MemTotal:" {
			kib, err := strconv.ParseUint(words[1], 10, 53)
			if err != nil {
				return 0, fmt.Errorf("read proc/meminfo: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("proc/meminfo has no MemTotal")
}

// hierarchy is a way in which the kernel may account memory, and the files that say how much.
type hierarchy struct {
	trees       []string // where it may be mounted
	limit, used string   // names of files
	idle        string   // the row of memory.stat with what the kernel takes back first
}

// hierarchies returns cgroup2 and the memory controller of version 1. With both, which is hybrid,
// memory is in one of them.
func hierarchies() []hierarchy {
	return []hierarchy{
		{[]string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}, "memory.max", "memory.current", "inactive_file"},
		{[]string{"sys/fs/cgroup/memory"}, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
	}
}

// unlimited is what version 1 has for no limit: the most that pages can be, whatever their size.
const unlimited = 1 << 62

// memoryLimit returns the smallest limit of this process's cgroup and its ancestors, and the file it
// is in; where is "" if there is no limit.
func (r Root) memoryLimit() (least uint64, where string) {
	least, where, _ = r.smallestLimit()
	return least, where
}

func (r Root) smallestLimit() (least uint64, where string, of hierarchy) {
	for i, h := range hierarchies() {
		at, ok := r.cgroupIn(i == 0)
		if !ok {
			continue
		}
		if at == "/" {
			at = r.ownCgroup(h.trees)
		}
		for ; ; at = path.Dir(at) {
			for _, tree := range h.trees {
				file := path.Join(tree, at, h.limit)
				limit, err := strconv.ParseUint(first(r.read(file)), 10, 64)
				if err == nil && limit < unlimited && (where == "" || limit < least) {
					least, where, of = limit, "/"+file, h
				}
			}
			if at == "/" {
				break
			}
		}
	}
	return least, where, of
}

// cgroupIn returns this process's cgroup in version 2, or in version 1's memory controller.
func (r Root) cgroupIn(v2 bool) (at string, ok bool) {
	groups, err := r.read("proc/self/cgroup")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(groups) {
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(words) < 3 {
			continue
		}
		is := slices.Contains(strings.Split(words[1], ","), "memory")
		if v2 {
			is = words[0] == "0" && words[1] == ""
		}
		if is {
			// Cleaned as an absolute path, it cannot lead out of the tree.
			return path.Clean("/" + words[2]), true
		}
	}
	return "", false
}

// MemoryUse returns how much memory counts against the smallest limit of this process's cgroup and
// its ancestors, without what the kernel takes back before it kills anybody. where is the file of the
// limit, or "" if there is none.
func (r Root) MemoryUse() (used, limit uint64, where string) {
	limit, where, of := r.smallestLimit()
	if where == "" {
		return 0, 0, ""
	}
	dir := path.Dir(where)
	used, err := strconv.ParseUint(first(r.read(path.Join(dir, of.used))), 10, 64)
	if err != nil {
		return 0, 0, ""
	}
	for line := range strings.Lines(first(r.read(path.Join(dir, "memory.stat")))) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == of.idle {
			idle, _ := strconv.ParseUint(words[1], 10, 64)
			used -= min(used, idle)
		}
	}
	return used, limit, where
}

// ownCgroup returns the path of this process's cgroup in a tree, which may be at one of several
// places. A container usually sees its own cgroup as the root, while the chart mounts the node's
// whole tree. The processes that a cgroup lists have the numbers that they have here.
func (r Root) ownCgroup(trees []string) string {
	pid, _, _ := strings.Cut(first(r.read("proc/self/stat")), " ")
	for _, tree := range trees {
		if at, ok := r.findProcess(pid, tree, "/"); ok {
			return at
		}
	}
	return "/"
}

// findProcess returns the cgroup below one of a tree, or that one itself, that lists a process.
func (r Root) findProcess(pid, tree, below string) (at string, ok bool) {
	dir := path.Join(tree, below)
	for listed := range strings.Lines(first(r.read(dir + "/cgroup.procs"))) {
		if strings.TrimSpace(listed) == pid {
			return below, true
		}
	}
	entries, _ := os.ReadDir(r.path(dir)) // a cgroup may end at any time
	for _, e := range entries {
		if e.IsDir() {
			if at, ok = r.findProcess(pid, tree, path.Join(below, e.Name())); ok {
				return at, true
			}
		}
	}
	return "", false
}
