package pinned

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Build builds what is missing and reports it to log. Two builds at once wait for each other, and a
// program is never there in part.
func (s *Set) Build(log io.Writer) error {
	if len(s.Missing()) == 0 {
		return nil
	}
	if err := os.MkdirAll(s.cache, 0o755); err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	unlock, err := lock(filepath.Join(s.cache, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.removeRest(); err != nil {
		return err
	}
	commands := map[string][]Binary{} // keyed by the module file that pins them
	var tests []Binary
	for _, b := range s.wanted {
		switch {
		case b.built(): // perhaps while we waited for the lock
		case b.test:
			tests = append(tests, b)
		default:
			commands[b.modfile] = append(commands[b.modfile], b)
		}
	}
	for _, modfile := range slices.Sorted(maps.Keys(commands)) {
		// One command builds all: most packages are in several programs, and while one program
		// waits for a package, others use the CPU.
		if err := s.build(log, commands[modfile], "build"); err != nil {
			return err
		}
	}
	for _, b := range tests {
		// Vetting everything that is linked takes longer than compiling it.
		if err := s.build(log, []Binary{b}, "test", "-c", "-vet=off"); err != nil {
			return err
		}
	}
	return nil
}

// removeRest removes what killed builds have left.
func (s *Set) removeRest() error {
	rest, err := filepath.Glob(filepath.Join(s.cache, ".build-*"))
	for _, dir := range rest {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("remove what earlier builds left: %w", err)
	}
	return nil
}

// build builds programs that one module file pins, with one go command.
func (s *Set) build(log io.Writer, wanted []Binary, how ...string) (err error) {
	var names, packages []string
	for _, b := range wanted {
		names = append(names, b.Name+" "+b.Version)
		packages = append(packages, b.pkg)
	}
	fmt.Fprintf(log, "building %s; without a warm build cache this takes minutes\n", strings.Join(names, ", "))
	temp, err := os.MkdirTemp(s.cache, ".build-*")
	if err != nil {
		return fmt.Errorf("create directory to build in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	args := append(how, "-modfile="+wanted[0].modfile, "-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", s.linkerFlags(), "-o", temp+"/")
	cmd := s.goCommand(log, append(args, packages...)...)
	cmd.Stdout = log
	// An abandoned build would go on for minutes. The kernel sends this signal when the thread
	// ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", strings.Join(names, ", "), err)
	}
	for _, b := range wanted {
		if err := os.Rename(filepath.Join(temp, b.output()), b.Path); err != nil {
			return fmt.Errorf("keep %s: %w", b.Name, err)
		}
	}
	return nil
}

// Images returns the names of the images that the specs run, which change with every Kubernetes
// release.
func (s *Set) Images(log io.Writer) ([]string, error) {
	// The same flags as for the programs, so that packages are not compiled again.
	out, err := s.goCommand(log, "run", "-modfile="+s.APIServer.modfile, "-trimpath", "-buildvcs=false", "./e2e/images").Output()
	if err != nil {
		return nil, fmt.Errorf("find the images that the specs of %s run: %w", s.version, err)
	}
	names := strings.Fields(string(out))
	slices.Sort(names)
	return slices.Compact(names), nil
}

// goCommand returns a go command in the pinning module. It compiles thousands of packages, so it
// runs under nice to let other work on the machine go first.
func (s *Set) goCommand(log io.Writer, args ...string) *exec.Cmd {
	cmd := exec.Command("nice", append([]string{"go"}, args...)...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly")
	cmd.Stderr = log
	return cmd
}

// output returns the name that go gives to the program: the last element of its import path that is
// not a version.
func (b *Binary) output() string {
	dir, last := path.Split(b.pkg)
	if regexp.MustCompile(`^v\d+$`).MatchString(last) {
		last = path.Base(dir)
	}
	if b.test {
		last += ".test"
	}
	return last
}

// linkerFlags omits debugging data and sets the variables that an official release build sets:
// clients and the server's version gates read them. They do nothing in programs without these
// variables.
func (s *Set) linkerFlags() string {
	parts := strings.SplitN(strings.TrimPrefix(s.version, "v"), ".", 3)
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X "+pkg+".gitVersion="+s.version, "-X "+pkg+".gitMajor="+parts[0], "-X "+pkg+".gitMinor="+parts[1])
	}
	return strings.Join(flags, " ")
}

func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}
