package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/cluster/place"
)

// startTimeout allows for a busy machine; on an idle one everything is ready in seconds.
const startTimeout = 3 * time.Minute

// process is a part of the cluster that runs in the background and outlives this program.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended, once done is closed
}

// start starts a process of the cluster. Its output goes to a log file named after it.
func (c *Cluster) start(p place.Place, name string, cmd *exec.Cmd) (*process, error) {
	log := c.path("logs", name+".log")
	file, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer file.Close()
	cmd.Stderr = file
	if cmd.Stdout == nil {
		cmd.Stdout = file
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true // keep this terminal's signals away from it
	if err := p.Start(cmd); err != nil {
		return nil, err
	}
	started := &process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		started.err = cmd.Wait()
		close(started.done)
	}()
	return started, nil
}

// await calls ask until it succeeds. It gives up when the process has ended, or after startTimeout.
func (p *process) await(ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("start %s: it ended (%v); the last lines of %s:\n%s", p.name, p.err, p.log, tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("start %s: not ready after %v: %w; the last lines of %s:\n%s", p.name, startTimeout, err, p.log, tail(p.log))
		case <-tick.C:
		}
	}
}

// stop terminates a process that this program started, and waits for its end.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	<-p.done
}

// kill kills a process that another program started, and waits for its end.
func kill(pid int) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer unix.Close(handle)
	if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// tail returns the last lines of a log.
func tail(log string) string {
	const lines = 15
	content, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	all := bytes.SplitAfter(content, []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines-1):], nil))
}

// output runs a command in a place and returns its standard output; an error contains its standard
// error.
func output(p place.Place, cmd *exec.Cmd, input []byte) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := p.Run(cmd); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(append([]string{filepath.Base(cmd.Path)}, cmd.Args[1:]...), " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// together runs functions concurrently and returns their errors.
func together(fns ...func() error) error {
	errs := make([]error, len(fns))
	var wg sync.WaitGroup
	for i, fn := range fns {
		wg.Go(func() { errs[i] = fn() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// inOrder runs functions one after another until one fails.
func inOrder(fns ...func() error) error {
	for _, fn := range fns {
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}
