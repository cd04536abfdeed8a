package vm

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// start starts the command so that it dies with this process, however that ends, and returns a
// function that waits for it. The kernel ties it to the thread that started it, so that thread is
// kept until the end.
func start(cmd *exec.Cmd) (wait func() error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return func() error { return <-ended }, nil
}

// cpuTime returns how much CPU time a process has used, or zero if it is gone.
func cpuTime(pid int) time.Duration {
	const tick = 10 * time.Millisecond // the kernel reports in hundredths of a second on all architectures that we have
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field is a name in parentheses, which may contain spaces; user and system time are the 14th and 15th.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var user, system int64
	if len(fields) < 13 {
		return 0
	}
	if _, err := fmt.Sscan(fields[11], &user); err != nil {
		return 0
	}
	if _, err := fmt.Sscan(fields[12], &system); err != nil {
		return 0
	}
	return time.Duration(user+system) * tick
}
