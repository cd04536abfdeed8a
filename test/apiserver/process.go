package apiserver

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// process is a child that writes to a log file and dies with the test binary.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // why, once done is closed
}

// start starts a child, which the end of the test ends.
func start(t testing.TB, path, log string, args ...string) *process {
	t.Helper()
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p := &process{name: filepath.Base(path), log: log, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The signal comes when the thread that started the child ends, so this one stays until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	t.Cleanup(p.stop)
	return p
}

// stop kills the child if it still runs, and waits for its end.
func (p *process) stop() {
	select {
	case <-p.done:
		return
	default:
	}
	// Kill cannot hit another process: the number is not given away before Wait returns, and then it does nothing.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// tail returns the last lines of a log.
func tail(log string) string {
	const lines = 40
	content, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	all := bytes.SplitAfter(content, []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines-1):], nil))
}

// freePorts returns TCP ports of loopback that nobody listens on. They are below those that the kernel gives to
// outgoing connections, so none of these takes one while a server restarts.
func freePorts(n int) ([]int, error) {
	const first, last, tries = 20000, 30000, 1000
	var ports []int
	for range tries {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(last-first)))
		if err != nil {
			continue
		}
		defer listener.Close() // only now, so that no port comes twice
		if ports = append(ports, listener.Addr().(*net.TCPAddr).Port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("find %d free ports: %d tries", n, tries)
}
