package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// emptyTimeout bounds the wait for killed processes to end; they cannot refuse.
const emptyTimeout = 30 * time.Second

// Cgroups holds the cgroup hierarchies of the machine.
type Cgroups struct {
	Unified string   // mount point of cgroup2
	Old     []string // mount points of cgroup v1, if any
}

// FindCgroups returns the mounted hierarchies.
func FindCgroups() (*Cgroups, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	return parseCgroups(string(mounts))
}

func parseCgroups(mounts string) (*Cgroups, error) {
	c := &Cgroups{}
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !slices.Contains(strings.Split(fields[3], ","), "rw") {
			continue
		}
		switch fields[2] {
		case "cgroup2":
			if c.Unified == "" {
				c.Unified = fields[1]
			}
		case "cgroup":
			c.Old = append(c.Old, fields[1])
		}
	}
	if c.Unified == "" {
		return nil, errors.New("find cgroups: no writable cgroup2 is mounted (mount -t cgroup2 none /sys/fs/cgroup/unified)")
	}
	return c, nil
}

// Dir returns the cgroup2 directory of a cgroup.
func (c *Cgroups) Dir(name string) string { return filepath.Join(c.Unified, name) }

// Create makes a cgroup in every hierarchy, to hold other cgroups but no processes, and inside it
// the named cgroups for processes. Existing cgroups are kept.
func (c *Cgroups) Create(name string, inner ...string) error {
	if err := c.delegate(); err != nil {
		return err
	}
	for _, hierarchy := range append([]string{c.Unified}, c.Old...) {
		dir := filepath.Join(hierarchy, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
		if hierarchy == c.Unified {
			continue
		}
		if err := copyCpuset(hierarchy, dir); err != nil {
			return fmt.Errorf("set up cgroup: %w", err)
		}
	}
	for _, cgroup := range inner {
		if err := os.MkdirAll(filepath.Join(c.Dir(name), cgroup), 0o755); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
	}
	return nil
}

// copyCpuset copies the values of the root to a new cgroup if the hierarchy has the cpuset
// controller: no process may enter a cgroup that has no processors or memory yet.
func copyCpuset(root, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), value, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// delegate enables the controllers that a kubelet needs for the cgroups below the root, if they
// belong to cgroup2.
func (c *Cgroups) delegate() error {
	if len(c.Old) > 0 {
		return nil // the kubelet uses the v1 hierarchies
	}
	have, err := os.ReadFile(filepath.Join(c.Unified, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read controllers: %w", err)
	}
	file := filepath.Join(c.Unified, "cgroup.subtree_control")
	given, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read controllers: %w", err)
	}
	for _, name := range strings.Fields(string(have)) {
		if slices.Contains(strings.Fields(string(given)), name) || !slices.Contains([]string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}, name) {
			continue
		}
		if err := os.WriteFile(file, []byte("+"+name), 0); err != nil {
			return fmt.Errorf("enable the cgroup controller %s: %w (processes in a container's root cgroup prevent it)", name, err)
		}
	}
	return nil
}

// Pids returns the processes in a cgroup, or none if the cgroup does not exist.
func (c *Cgroups) Pids(name string) ([]int, error) {
	content, err := os.ReadFile(filepath.Join(c.Dir(name), "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read processes of cgroup: %w", err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(content)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("read processes of cgroup %s: %w", name, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Remove kills the processes in a cgroup and below it, waits until they have ended, and removes the
// cgroup from every hierarchy. It is no error if the cgroup does not exist.
func (c *Cgroups) Remove(name string) error {
	err := os.WriteFile(filepath.Join(c.Dir(name), "cgroup.kill"), []byte("1"), 0)
	if err == nil {
		err = c.awaitEmpty(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end processes of cgroup %s: %w", name, err)
	}
	for _, hierarchy := range append([]string{c.Unified}, c.Old...) {
		if err := removeTree(filepath.Join(hierarchy, name)); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}

// awaitEmpty waits until the kernel reports that no process is left.
func (c *Cgroups) awaitEmpty(name string) error {
	events, err := os.Open(filepath.Join(c.Dir(name), "cgroup.events"))
	if err != nil {
		return err
	}
	defer events.Close()
	for deadline := time.Now().Add(emptyTimeout); ; {
		content := make([]byte, 256)
		n, err := events.ReadAt(content, 0)
		if n == 0 && err != nil {
			return err
		}
		if slices.Contains(strings.Split(string(content[:n]), "\n"), "populated 0") {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("some remain %s after they were killed", emptyTimeout)
		}
		// The file signals POLLPRI when its content changes.
		watched := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(watched, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// removeTree removes a cgroup and all cgroups below it, innermost first.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	// A v1 hierarchy may hold on to a process for a moment after cgroup2 has released it.
	for deadline := time.Now().Add(emptyTimeout); ; time.Sleep(10 * time.Millisecond) {
		if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
