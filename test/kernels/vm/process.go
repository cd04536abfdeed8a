package vm

import (
	"os/exec"
	"runtime"
	"syscall"
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
