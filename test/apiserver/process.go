package apiserver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// process is a child that writes to a log file and dies with the test binary.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; valid once done is closed
}

// start starts a child that is stopped when the test ends.
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
		// The kernel sends the signal when the thread that started the child ends, so keep this
		// thread until the child has ended.
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

// stop kills the child if it still runs, and waits until it has ended.
func (p *process) stop() {
	select {
	case <-p.done:
		return
	default:
	}
	// Kill cannot hit another process: the kernel does not reuse the pid before Wait returns, and
	// after that Kill does nothing.
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

// reservePort reserves a TCP port on loopback, until the test ends, for a process that listens with
// SO_REUSEPORT. The socket is bound but never listens: it gets no connections, and nobody else gets
// the port, even while a server restarts.
func reservePort(t testing.TB) int {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	name, err := unix.Getsockname(socket)
	if err != nil {
		t.Fatalf("reserve a port: %v", err)
	}
	return name.(*unix.SockaddrInet4).Port
}
