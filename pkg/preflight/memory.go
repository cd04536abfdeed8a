package preflight

import (
	"errors"
	"fmt"
	"os"
	"path"
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

func (n *Node) totalMemory() (uint64, error) {
	text, err := n.read("proc/meminfo")
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

// memoryLimit returns the smallest memory.max of this process's cgroup and its ancestors, and the
// file it is in; where is "" if there is no limit.
func (n *Node) memoryLimit() (least uint64, where string) {
	groups, err := n.read("proc/self/cgroup")
	if err != nil {
		return 0, ""
	}
	for line := range strings.Lines(groups) {
		at, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		// Cleaned as an absolute path, it cannot lead out of the tree.
		at = path.Clean("/" + at)
		if at == "/" {
			at = n.ownCgroup()
		}
		for ; ; at = path.Dir(at) {
			for _, tree := range cgroupTrees() {
				file := path.Join(tree, at, "memory.max")
				limit, err := strconv.ParseUint(first(n.read(file)), 10, 64)
				if err == nil && (where == "" || limit < least) {
					least, where = limit, "/"+file
				}
			}
			if at == "/" {
				break
			}
		}
	}
	return least, where
}

// cgroupTrees returns where the tree of cgroup2 may be mounted.
func cgroupTrees() []string { return []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} }

// ownCgroup returns the path of this process's cgroup in the tree. A container usually sees its own
// cgroup as the root, while the chart mounts the node's whole tree. The processes that a cgroup
// lists have the numbers that they have here.
func (n *Node) ownCgroup() string {
	pid, _, _ := strings.Cut(first(n.read("proc/self/stat")), " ")
	for _, tree := range cgroupTrees() {
		if at, ok := n.findProcess(pid, tree, "/"); ok {
			return at
		}
	}
	return "/"
}

// findProcess returns the cgroup below one of a tree, or that one itself, that lists a process.
func (n *Node) findProcess(pid, tree, below string) (at string, ok bool) {
	dir := path.Join(tree, below)
	for listed := range strings.Lines(first(n.read(dir + "/cgroup.procs"))) {
		if strings.TrimSpace(listed) == pid {
			return below, true
		}
	}
	entries, _ := os.ReadDir(n.path(dir)) // a cgroup may end at any time
	for _, e := range entries {
		if e.IsDir() {
			if at, ok = n.findProcess(pid, tree, path.Join(below, e.Name())); ok {
				return at, true
			}
		}
	}
	return "", false
}
