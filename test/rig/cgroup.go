package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// emptyTimeout bounds the wait for killed processes. They cannot refuse to die, so reaching it
// means that the kernel holds one in an uninterruptible call.
const emptyTimeout = 10 * time.Second

// Cgroup is a cgroup2 directory of our own. Programs attached to it see only the processes started
// in it, so tests can run side by side and leave the rest of the machine alone.
type Cgroup struct {
	path string
	dir  *os.File
}

// NewCgroup returns a new cgroup that is removed, with every process in it, when the test ends.
func NewCgroup(t T) *Cgroup {
	t.Helper()
	c, err := CreateCgroup()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return c
}

// CreateCgroup returns a new cgroup below the root of the cgroup2 file system. The caller closes it.
func CreateCgroup() (*Cgroup, error) {
	root, err := cgroupRoot()
	if err != nil {
		return nil, err
	}
	for n := 0; ; n++ {
		path := filepath.Join(root, ownPrefix()+strconv.Itoa(n))
		switch err := os.Mkdir(path, 0o755); {
		case errors.Is(err, fs.ErrExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("create cgroup: %w", err)
		}
		return openCgroup(path)
	}
}

// openCgroup returns the cgroup that was just made at path.
func openCgroup(path string) (*Cgroup, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open cgroup: %w", err), os.Remove(path))
	}
	return &Cgroup{path: path, dir: dir}, nil
}

// NewCgroupIn returns a new cgroup with that name inside another one. It is removed, with every
// process in it, when the test ends, before its parent is.
func NewCgroupIn(t T, parent *Cgroup, name string) *Cgroup {
	t.Helper()
	path := filepath.Join(parent.path, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatalf("create cgroup: %v", err)
	}
	c, err := openCgroup(path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return c
}

// Path returns the path of the cgroup's directory.
func (c *Cgroup) Path() string { return c.path }

// FD returns the descriptor of the directory, to attach programs to. It is valid until Close.
func (c *Cgroup) FD() int { return int(c.dir.Fd()) }

// Command returns a command that starts in the cgroup: it never runs outside it. The command is
// killed when the thread that starts it ends, so it does not outlive this process.
func (c *Cgroup) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: c.FD(), Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Pids returns the processes in the cgroup.
func (c *Cgroup) Pids() ([]int, error) {
	content, err := os.ReadFile(filepath.Join(c.path, "cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("read processes of cgroup: %w", err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(content)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("read processes of cgroup %s: %w", c.path, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Close kills the processes in the cgroup and removes it. Only we start processes in it, so all of them are ours.
func (c *Cgroup) Close() error {
	pids, err := c.Pids()
	if err != nil {
		return err
	}
	if slices.Contains(pids, os.Getpid()) {
		return fmt.Errorf("remove cgroup %s: this process is in it", c.path)
	}
	if len(pids) > 0 {
		// One write also kills processes that are being forked right now; a list of processes would
		// miss them.
		if err := os.WriteFile(filepath.Join(c.path, "cgroup.kill"), []byte("1"), 0); err != nil {
			return fmt.Errorf("kill processes of cgroup: %w", err)
		}
	}
	if err := c.waitEmpty(); err != nil {
		return err
	}
	if err := os.Remove(c.path); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return c.dir.Close()
}

// waitEmpty waits until the kernel reports that no process is left.
func (c *Cgroup) waitEmpty() error {
	events, err := os.Open(filepath.Join(c.path, "cgroup.events"))
	if err != nil {
		return fmt.Errorf("watch cgroup: %w", err)
	}
	defer events.Close()
	deadline := time.Now().Add(emptyTimeout)
	for {
		content := make([]byte, 256)
		n, err := events.ReadAt(content, 0)
		if n == 0 && err != nil {
			return fmt.Errorf("watch cgroup: %w", err)
		}
		if slices.Contains(strings.Split(string(content[:n]), "\n"), "populated 0") {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			pids, _ := c.Pids()
			return fmt.Errorf("remove cgroup %s: processes %v are still there %s after they were killed", c.path, pids, emptyTimeout)
		}
		// The kernel signals POLLPRI on the file when its content changes.
		watched := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(watched, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch cgroup: %w", err)
		}
	}
}

// cgroupRoot returns where the cgroup2 file system is mounted, in the unified layout or beside cgroup1.
func cgroupRoot() (string, error) {
	mounts, err := readMounts()
	if err != nil {
		return "", err
	}
	return findCgroup2(mounts)
}

func findCgroup2(mounts []mount) (string, error) {
	readOnly := ""
	for _, m := range mounts {
		switch {
		case m.kind != "cgroup2":
		case m.writable:
			return m.path, nil
		default:
			readOnly = m.path
		}
	}
	if readOnly != "" {
		return "", fmt.Errorf("find cgroup2: %s is mounted read-only", readOnly)
	}
	return "", errors.New("find cgroup2: it is not mounted (mount -t cgroup2 none DIRECTORY)")
}

// ownPrefix starts the name of everything that this process creates in a file system.
func ownPrefix() string { return fmt.Sprintf("fairlead-%d-", os.Getpid()) }
