package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

const (
	self   = "/proc/self/exe"
	root   = 0
	nobody = 65534
	// mounted is where programs see the fetched files. The cache belongs to root, and not all
	// programs run as root.
	mounted = "/mnt"
)

// fetched returns the directory into which test/tools/programs.sh fetches.
func (w *threePods) fetched() string {
	w.T.Helper()
	cache, err := os.UserCacheDir()
	w.Must(err)
	return filepath.Join(cache, "fairlead", "programs")
}

// find returns the path under which programs see a fetched program, and ends the test if there is
// none.
func (w *threePods) find(name string) string {
	w.T.Helper()
	dir := w.fetched()
	// In this order: some of the files in usr/bin are scripts that look for those before.
	for _, place := range []string{"usr/lib/postgresql/*/bin", "usr/sbin", "usr/bin"} {
		found, err := filepath.Glob(filepath.Join(dir, place, name))
		w.Must(err)
		if len(found) > 0 {
			return filepath.Join(mounted, strings.TrimPrefix(found[len(found)-1], dir))
		}
	}
	rig.Lacking(w.T, "programs", name+" must be fetched first: test/tools/programs.sh")
	return ""
}

// program is a running program of a third party.
type program struct {
	w *threePods
	*rig.Process
	log string
}

// start starts a fetched program in a pod, as a user. What it prints is in its log.
func (w *threePods) start(pod, uid int, name string, args ...string) *program {
	w.T.Helper()
	return w.startIn(w.fetched(), pod, uid, w.find(name), args...)
}

// startIn starts a program of a directory, by its path below mounted, where it sees that directory.
func (w *threePods) startIn(dir string, pod, uid int, path string, args ...string) *program {
	w.T.Helper()
	log, err := os.CreateTemp(w.T.TempDir(), filepath.Base(path))
	w.Must(err)
	w.Must(log.Close())
	args = append([]string{strconv.Itoa(uid), log.Name(), dir, path}, args...)
	return &program{w, rig.NewChild(w.T, w.cgroup, w.pods[pod], "exec", args...), log.Name()}
}

// run runs a program, and returns what it printed.
func (w *threePods) run(pod, uid int, name string, args ...string) string {
	w.T.Helper()
	return w.start(pod, uid, name, args...).ended()
}

func (p *program) said() string {
	p.w.T.Helper()
	content, err := os.ReadFile(p.log)
	p.w.Must(err)
	return string(content)
}

// ended waits for the end of a program, and returns what it printed.
func (p *program) ended() string {
	p.w.T.Helper()
	if err := p.Wait(); err != nil {
		p.w.T.Fatalf("%v\n%s", err, p.said())
	}
	return p.said()
}

// as starts a function of this package in a pod, as a user.
func (w *threePods) as(pod, uid int, name string, args ...string) *rig.Process {
	w.T.Helper()
	return rig.NewChild(w.T, w.cgroup, w.pods[pod], "exec", append([]string{strconv.Itoa(uid), "", "", self, name}, args...)...)
}

// directory returns a new directory that belongs to a user and that everybody may enter.
func (w *threePods) directory(uid int) string {
	w.T.Helper()
	dir, err := os.MkdirTemp("", "fairlead-programs-")
	w.Must(err)
	w.T.Cleanup(func() { w.Must(os.RemoveAll(dir)) })
	w.Must(errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, uid, uid)))
	return dir
}

// execMain becomes another program, in mount and IPC namespaces of its own, which end with it.
func execMain(args []string) int {
	runtime.LockOSThread()
	err := become(args[0], args[1], args[2], args[3], args[4:])
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func become(uid, log, fetched, path string, args []string) error {
	id, err := strconv.Atoi(uid)
	if err != nil {
		return err
	}
	env := os.Environ()
	name := path
	if path == self {
		name = os.Args[0]
	} else {
		if env, err = prepare(log, fetched, env); err != nil {
			return err
		}
	}
	for _, call := range []uintptr{unix.SYS_SETGID, unix.SYS_SETUID} { // of this thread only
		if _, _, errno := unix.RawSyscall(call, uintptr(id), 0, 0); errno != 0 {
			return fmt.Errorf("become user %d: %w", id, errno)
		}
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil { // setuid has cleared it
		return err
	}
	return fmt.Errorf("become %s: %w", path, syscall.Exec(path, append([]string{name}, args...), env))
}

// prepare mounts the fetched files for this thread only, and has it write to the log.
func prepare(log, fetched string, env []string) ([]string, error) {
	file, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	for fd := 1; fd <= 2; fd++ {
		if err := unix.Dup3(int(file.Fd()), fd, 0); err != nil {
			return nil, err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWIPC); err != nil {
		return nil, fmt.Errorf("leave the mounts of others: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("leave the mounts of others: %w", err)
	}
	if err := unix.Mount(fetched, mounted, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("show what was fetched: %w", err)
	}
	libraries, err := filepath.Glob(mounted + "/usr/lib/*-linux-gnu")
	if err != nil {
		return nil, err
	}
	return append(env, "LD_LIBRARY_PATH="+strings.Join(libraries, ":")), unix.Chdir("/")
}
