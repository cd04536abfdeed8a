// Package place starts processes in the parts of a cluster: in a network namespace, in all
// namespaces of a node, and in a cgroup, by which they can be found and killed.
package place

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Place says where to start processes. The zero value is the caller's own place.
type Place struct {
	Netns  string // path of a network namespace; "" is the caller's
	Init   int    // PID of a node's first process, whose namespaces to enter; 0 is none
	Cgroup string // cgroup2 directory in which processes start; "" is the caller's
}

// Start starts a command in the place; at no moment does it run elsewhere. The command outlives the
// caller.
func (p Place) Start(cmd *exec.Cmd) error {
	entrances, err := p.open()
	defer func() {
		for _, e := range entrances {
			e.file.Close()
		}
	}()
	if err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if p.Cgroup != "" {
		dir, err := os.Open(p.Cgroup)
		if err != nil {
			return fmt.Errorf("start %s: open its cgroup: %w", cmd.Path, err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if p.Init != 0 && cmd.Dir == "" {
		cmd.Dir = "/" // entering a mount namespace leaves the working directory
	}
	return onThread(func() error { return enterAndStart(entrances, cmd) })
}

// Run starts a command in the place and waits until it ends.
func (p Place) Run(cmd *exec.Cmd) error {
	if err := p.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Do runs a function in the network namespace of the place, on its own thread.
func (p Place) Do(fn func() error) error {
	entrances, err := Place{Netns: p.Netns}.open()
	if err != nil {
		return err
	}
	err = onThread(func() error {
		if err := enter(entrances); err != nil {
			return err
		}
		return fn()
	})
	for _, e := range entrances {
		e.file.Close()
	}
	return err
}

// onThread runs a function on a thread that is not used afterward, since fn may leave it in other
// namespaces.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			done <- fn()
			return
		}
		// This is the main thread, which never ends, and /proc/self shows its namespaces. Run the
		// function on another thread: it cannot be this one while this goroutine is locked to it.
		err := onThread(fn)
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// entrance is an open namespace.
type entrance struct {
	file *os.File
	kind int
}

// open opens the namespaces in the order in which they must be entered.
func (p Place) open() ([]entrance, error) {
	type door struct {
		path string
		kind int
	}
	var doors []door
	if p.Netns != "" {
		doors = append(doors, door{p.Netns, unix.CLONE_NEWNET})
	}
	if p.Init != 0 {
		of := "/proc/" + strconv.Itoa(p.Init) + "/ns/"
		// The mount namespace comes last, since the paths of the others are looked up in the file
		// system.
		doors = []door{{of + "net", unix.CLONE_NEWNET}, {of + "uts", unix.CLONE_NEWUTS}, {of + "pid", unix.CLONE_NEWPID}, {of + "mnt", unix.CLONE_NEWNS}}
	}
	var open []entrance
	for _, d := range doors {
		file, err := os.Open(d.path)
		if errors.Is(err, os.ErrNotExist) {
			return open, fmt.Errorf("no %s; is the cluster up?", d.path)
		}
		if err != nil {
			return open, fmt.Errorf("open namespace: %w", err)
		}
		open = append(open, entrance{file, d.kind})
	}
	return open, nil
}

// enter moves the calling thread into the namespaces.
func enter(entrances []entrance) error {
	for _, e := range entrances {
		if e.kind == unix.CLONE_NEWNS {
			// The kernel requires that the thread share its file system attributes with no other.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("enter namespace: %w", err)
			}
		}
		if err := unix.Setns(int(e.file.Fd()), e.kind); err != nil {
			return fmt.Errorf("enter namespace %s: %w", e.file.Name(), err)
		}
	}
	return nil
}

func enterAndStart(entrances []entrance, cmd *exec.Cmd) error {
	if err := enter(entrances); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return nil
}
