package podnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// killer follows a process by ptrace and kills it right before its nth system call that changes
// something: in the kernel, in a file or at the other end of a socket. So it produces every state
// that a crash can leave, whatever the code looks like. All of this happens on the calling thread,
// which must be locked.
type killer struct {
	nth  int
	seen int
	step string // the call at which it was killed; empty if it was not
	// instead, if set, is called in place of killing, while the process stands still.
	instead func()
}

// changes returns the system calls that change something.
func changes() map[uint64]string {
	return map[uint64]string{
		unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg", unix.SYS_WRITE: "write", unix.SYS_OPENAT: "openat", unix.SYS_CONNECT: "connect",
		unix.SYS_LINKAT: "linkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat",
	}
}

// syscallInfo is what PTRACE_GET_SYSCALL_INFO returns at the entry of a call.
type syscallInfo struct {
	Op   uint8
	_    [3]uint8
	Arch uint32
	IP   uint64
	SP   uint64
	Nr   uint64
	Args [6]uint64
}

const (
	getSyscallInfo = 0x420e
	atEntry        = 1
	followOptions  = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
)

// isChange reports whether a stopped thread is about to change something, and by which call.
func isChange(tid int) (string, bool) {
	var info syscallInfo
	if _, _, err := unix.RawSyscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); err != 0 || info.Op != atEntry {
		return "", false
	}
	name, ok := changes()[info.Nr]
	switch {
	case !ok:
	case info.Nr == unix.SYS_OPENAT:
		ok = info.Args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0
	case info.Nr == unix.SYS_WRITE:
		ok = info.Args[0] > 2 && info.Args[2] != 8 // the Go runtime wakes itself with eight bytes
	}
	return name, ok
}

// follow lets a process that the calling thread traces run until it ends or is killed.
func (k *killer) follow(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		tid, err := syscall.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return status, err
		}
		if !status.Stopped() {
			if tid == pid {
				return status, nil
			}
			continue
		}
		deliver := 0
		switch signal := status.StopSignal(); {
		case signal == unix.SIGTRAP|0x80:
			if step, ok := isChange(tid); ok && k.step == "" {
				if k.seen++; k.seen == k.nth {
					k.step = step
					if k.instead != nil {
						k.instead()
						break
					}
					if err := unix.Kill(pid, unix.SIGKILL); err != nil {
						return status, err
					}
					continue
				}
			}
		case signal == unix.SIGTRAP, signal == unix.SIGSTOP: // a new thread, or one stopped to be followed
		default:
			deliver = int(signal)
		}
		// A thread that is being killed cannot continue, and wait4 reports its end next.
		if err := syscall.PtraceSyscall(tid, deliver); err != nil && !errors.Is(err, unix.ESRCH) {
			return status, err
		}
	}
}

// attach begins to follow a running process. A thread that is not followed yet may start another
// meanwhile, so attach looks again until there is no new one.
func (k *killer) attach(pid int) error {
	known := map[int]bool{}
	for before := -1; before != len(known); {
		before = len(known)
		entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			tid, err := strconv.Atoi(entry.Name())
			if err != nil {
				return err
			}
			if known[tid] {
				continue
			}
			known[tid] = true
			_, _, failed := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, followOptions, 0, 0)
			if failed == unix.EPERM {
				continue // started by a thread that is followed, and so followed already
			}
			if failed == 0 {
				_, _, failed = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_INTERRUPT, uintptr(tid), 0, 0, 0, 0)
			}
			if failed != 0 {
				return fmt.Errorf("follow thread %d: %w", tid, failed)
			}
		}
	}
	return nil
}

// killingExec runs a plugin for libcni, and kills it at its nth change.
type killingExec struct {
	version.PluginDecoder
	*killer
}

// errKilled is the error of a plugin that was killed.
var errKilled = errors.New("killed")

// FindInPath finds a plugin as libcni's own implementation does.
func (killingExec) FindInPath(plugin string, paths []string) (string, error) {
	for _, path := range paths {
		if full := filepath.Join(path, plugin); unix.Access(full, unix.X_OK) == nil {
			return full, nil
		}
	}
	return "", os.ErrNotExist
}

// ExecPlugin runs on the thread on which the test entered the node's namespace, which is locked.
func (e killingExec) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var files []*os.File
	defer func() {
		for _, file := range files {
			file.Close()
			os.Remove(file.Name())
		}
	}()
	for range 3 {
		file, err := os.CreateTemp("", "fairlead-cni-")
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if _, err := files[0].WriteAt(stdin, 0); err != nil {
		return nil, err
	}
	process, err := os.StartProcess(path, []string{path}, &os.ProcAttr{Env: environ, Files: files, Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		return nil, err
	}
	defer process.Release()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(process.Pid, &status, unix.WALL, nil); err != nil {
		return nil, err
	}
	if err := syscall.PtraceSetOptions(process.Pid, followOptions); err != nil {
		return nil, err
	}
	if err := syscall.PtraceSyscall(process.Pid, 0); err != nil {
		return nil, err
	}
	if status, err = e.follow(process.Pid); err != nil {
		return nil, err
	}
	if e.step != "" && e.instead == nil {
		return nil, errKilled
	}
	if _, err := files[1].Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	out, err := io.ReadAll(files[1])
	if err == nil && status.ExitStatus() != 0 {
		err = fmt.Errorf("the plugin failed: %s", bytes.TrimSpace(out))
	}
	return out, err
}
