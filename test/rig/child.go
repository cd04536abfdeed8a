package rig

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// childName is the argv[0] that tells a process it is a child of the rig.
const childName = "fairlead-rig-child"

// outputDelay bounds the wait for a grandchild that keeps the child's standard error open after the
// child has ended.
const outputDelay = 5 * time.Second

// Funcs are the functions that a binary can run as child processes, by name. A function gets the
// arguments of its call and returns the exit code.
type Funcs map[string]func(args []string) int

// Main runs the tests of a package whose tests start children, and returns the exit code. It fails if the tests leave
// something behind. Call it from TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(rig.Main(m, rig.Funcs{"connect": connect})) }
func Main(m interface{ Run() int }, funcs Funcs) int {
	if code, ok := funcs.Dispatch(os.Args); ok {
		return code
	}
	before, err := takeInventory()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	left, err := before.added()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if len(left) > 0 {
		fmt.Fprintf(os.Stderr, "the tests left behind: %q\n", left)
		return 1
	}
	return code
}

// Dispatch runs the function that this process was started for, if it is a child of the rig. A
// program that starts children calls Dispatch first, with os.Args, and if ok exits with code.
func (f Funcs) Dispatch(args []string) (code int, ok bool) {
	if !isChild(args) {
		return 0, false
	}
	if len(args) > 1 && f[args[1]] != nil {
		return f[args[1]](args[2:]), true
	}
	fmt.Fprintf(os.Stderr, "run child: no function in %q\n", args[1:])
	return 2, true
}

func isChild(args []string) bool { return len(args) > 0 && args[0] == childName }

// Process is a running child.
type Process struct {
	Stdin io.WriteCloser // the child's standard input

	cmd    *exec.Cmd
	stdout *bufio.Reader
	pipe   *os.File // the end that stdout reads from
	stderr bytes.Buffer
	done   chan struct{} // closed when the process has ended
	err    error         // how it ended; valid after done
}

// Child runs a function of Funcs in its own process and returns what it printed. It fails the test
// unless the function returns 0. A nil cgroup or namespace means the test's own.
func Child(t T, cgroup *Cgroup, ns *Netns, name string, args ...string) string {
	t.Helper()
	out, err := RunChild(cgroup, ns, name, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// NewChild starts a function of Funcs in its own process, which is killed when the test ends.
func NewChild(t T, cgroup *Cgroup, ns *Netns, name string, args ...string) *Process {
	t.Helper()
	p, err := StartChild(cgroup, ns, name, args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(p.Kill)
	return p
}

// RunChild runs a function of Funcs in its own process and returns what it printed, even if it also
// returns an error. The error includes the exit code and what the child wrote to standard error.
func RunChild(cgroup *Cgroup, ns *Netns, name string, args ...string) (string, error) {
	p, err := StartChild(cgroup, ns, name, args...)
	if err != nil {
		return "", err
	}
	defer p.Kill()
	// A child that reads no input may have ended already, which also closes Stdin.
	if err := p.Stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return "", fmt.Errorf("close input of child %s: %w", name, err)
	}
	out, err := io.ReadAll(p.stdout)
	if err != nil {
		return string(out), fmt.Errorf("read output of child %s: %w", name, err)
	}
	return string(out), p.Wait()
}

// StartChild starts a function of Funcs in its own process. The child dies with this process. The
// caller ends it with Kill.
func StartChild(cgroup *Cgroup, ns *Netns, name string, args ...string) (*Process, error) {
	// Without Dispatch a test binary would run its tests again in each child, and those would start children.
	if isChild(os.Args) {
		return nil, fmt.Errorf("start child %s: this process is itself a child that did not call Main or Dispatch", name)
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{childName, name}, args...)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, cgroup.FD()
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.Stderr = &p.stderr
	cmd.WaitDelay = outputDelay
	var err error
	if p.Stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start child %s: %w", name, err)
	}
	// Use our own pipe: os/exec closes its pipe when the process ends, even if it has not been
	// read.
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start child %s: %w", name, err)
	}
	p.pipe, p.stdout, cmd.Stdout = read, bufio.NewReader(read), write

	started := make(chan error)
	go p.run(ns, started)
	err = <-started
	write.Close()
	if err != nil {
		read.Close()
		return nil, fmt.Errorf("start child %s: %w", name, err)
	}
	return p, nil
}

// run starts the process, reports the result, and waits for it to end, all on one locked thread:
// the kernel kills the child when the thread that started it ends, not when the process does.
func (p *Process) run(ns *Netns, started chan<- error) {
	defer close(p.done)
	enter := func() error { return nil }
	if ns != nil {
		enter = ns.enter
	}
	starts := false
	err := onThread(enter, returnHome, func() error {
		starts = true
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		return nil
	})
	if !starts {
		started <- err
	}
}

// Pid returns the id of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// ReadLine returns the next line that the child prints, without the newline. It blocks until the
// line arrives, so a child prints a line to say that it is ready.
func (p *Process) ReadLine() (string, error) {
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		return line, fmt.Errorf("read from child %s: %w", p.cmd.Args[1], err)
	}
	return line[:len(line)-1], nil
}

// Ask writes a question to the child as a line of JSON, and reads the answer from the next line.
func (p *Process) Ask(question, answer any) error {
	if err := json.NewEncoder(p.Stdin).Encode(question); err != nil {
		return fmt.Errorf("ask %+v: %w", question, err)
	}
	line, err := p.ReadLine()
	if err == nil {
		err = json.Unmarshal([]byte(line), answer)
	}
	if err != nil {
		return fmt.Errorf("ask %+v: answer %q: %w", question, line, err)
	}
	return nil
}

// Wait waits until the child has ended. The error includes the exit code and what the child wrote
// to standard error.
func (p *Process) Wait() error {
	<-p.done
	if p.err != nil {
		return fmt.Errorf("run child %q: %w\n%s", p.cmd.Args[1:], p.err, p.stderr.Bytes())
	}
	return nil
}

// Kill kills the child unless it has ended, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the only possible error is that it has ended
	<-p.done
	p.Stdin.Close()
	p.pipe.Close()
}
