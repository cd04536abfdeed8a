// Package vm runs commands in a virtual machine that boots a given kernel. The machine is qemu in
// software emulation, so it needs neither root nor virtualization support, and shows what works but
// never how fast. It has no disk and no network: its file system is an archive in memory, made for
// the run, and results come back over serial lines.
package vm

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed init.sh
var initScript []byte

const (
	bootLimit = 3 * time.Minute // until the first job begins; on an idle computer that takes six seconds
	endLimit  = time.Minute     // from the end of the last job until the machine is off
)

// Machine says what to boot. Everything but Image, Busybox and Dir is optional.
type Machine struct {
	Image   string // the kernel
	Busybox string // static binary: the machine's shell and tools
	Modules []File // the kernel's, in the order of loading
	Files   []File // files that the jobs need; a job's own are below JobDir
	Env     []string
	Memory  int    // MiB; 0 = 1024
	Exact   bool   // the clock counts instructions, see arguments
	Dir     string // receives console.log and the jobs' logs and files; existing content is removed
}

// Job is a command to run in the machine. It runs in JobDir(Name), and files that it writes to
// $JOB_OUT are returned.
type Job struct {
	Name  string
	Args  []string
	Limit time.Duration // the machine is stopped if the job takes longer
}

// Result is the outcome of a job.
type Result struct {
	Code int // exit code
	Took time.Duration
	CPU  time.Duration // that the machine has used meanwhile; what is missing to Took it waited
	Log  string        // path of the command's output
	Out  string        // directory of the returned files; does not exist if there are none
}

// JobDir returns the directory of a job in the machine.
func JobDir(name string) string { return "/job/" + name }

// DiedError reports that a machine ended before its jobs had.
type DiedError struct {
	Cause string // why the machine ended
	Job   string // the running job; empty before the first and after the last
	Tail  string // the last lines of the console
}

// Error returns the cause, and the console's last lines.
func (e *DiedError) Error() string {
	during := "outside of any job"
	if e.Job != "" {
		during = "in job " + e.Job
	}
	return fmt.Sprintf("run machine: %s, %s; the console's last lines:\n%s", e.Cause, during, e.Tail)
}

// Run boots the machine, runs the jobs one after another, and returns the results of those that
// ended, in their order. A nonzero exit code is not an error and does not keep the next job from
// running. The error is a *DiedError if the machine panicked, took too long or ended otherwise.
func (m *Machine) Run(ctx context.Context, jobs []Job) ([]Result, error) {
	if err := os.RemoveAll(m.Dir); err != nil {
		return nil, fmt.Errorf("prepare output directory: %w", err)
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare output directory: %w", err)
	}
	temp, err := os.MkdirTemp("", "fairlead-vm-")
	if err != nil {
		return nil, fmt.Errorf("prepare machine: %w", err)
	}
	defer os.RemoveAll(temp)
	mark, script := jobsScript(m.Env, jobs)
	if err := m.writeInitramfs(filepath.Join(temp, "initramfs"), script); err != nil {
		return nil, err
	}
	report := newReport(m.Dir, mark, jobs)
	died := m.boot(ctx, temp, report)
	if err := os.WriteFile(m.console(), readConsole(m.console()), 0o644); err != nil {
		return report.results, fmt.Errorf("keep console: %w", err)
	}
	if died != nil {
		return report.results, m.died(died, report)
	}
	return report.results, unpackFiles(filepath.Join(temp, "files.tar"), report)
}

// died returns why the machine ended, as far as the console shows it.
func (m *Machine) died(cause error, r *report) error {
	console := strings.TrimRight(string(readConsole(m.console())), "\n")
	died := &DiedError{Cause: cause.Error(), Job: r.running, Tail: tail(console)}
	if console == "" {
		died.Tail = "(nothing)"
	}
	if at := strings.LastIndex(console, "Kernel panic - not syncing"); at >= 0 {
		line, _, _ := strings.Cut(console[at:], "\n")
		died.Cause = strings.TrimSpace(line)
	}
	return died
}

func (m *Machine) console() string { return filepath.Join(m.Dir, "console.log") }

// boot starts the machine and follows it to its end.
func (m *Machine) boot(ctx context.Context, temp string, r *report) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("open report: %w", err)
	}
	defer read.Close()
	// The third descriptor is the first of ExtraFiles.
	args := append(m.arguments(filepath.Join(temp, "initramfs")), "-display", "none",
		"-serial", "file:"+m.console(), "-chardev", "file,id=report,path=/dev/fd/3", "-serial", "chardev:report",
		"-serial", "file:"+filepath.Join(temp, "files.tar"))
	var stderr bytes.Buffer
	cmd := qemu(ctx, args)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &stderr, &stderr, []*os.File{write}
	process, err := start(cmd)
	write.Close()
	if err != nil {
		return fmt.Errorf("start qemu: %w", err)
	}
	r.cpu = func() time.Duration { return cpuTime(cmd.Process.Pid) }
	if err := r.follow(read, bootLimit, cancel); err != nil {
		cancel(err)
	}
	err = process()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("qemu: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	if !r.done {
		return errors.New("the machine switched itself off")
	}
	return nil
}

// Shell boots the machine with this terminal as its console, and runs a shell in place of jobs.
func (m *Machine) Shell(ctx context.Context) error {
	temp, err := os.MkdirTemp("", "fairlead-vm-")
	if err != nil {
		return fmt.Errorf("prepare machine: %w", err)
	}
	defer os.RemoveAll(temp)
	script := append(exports(m.Env), "shell\n"...)
	if err := m.writeInitramfs(filepath.Join(temp, "initramfs"), script); err != nil {
		return err
	}
	cmd := qemu(ctx, append(m.arguments(filepath.Join(temp, "initramfs")), "-nographic",
		"-serial", "mon:stdio", "-serial", "null", "-serial", "null"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	process, err := start(cmd)
	if err != nil {
		return fmt.Errorf("start qemu: %w", err)
	}
	return process()
}

// qemu returns the qemu command. The context kills it, since there is nothing to save in the
// machine.
func qemu(ctx context.Context, args []string) *exec.Cmd {
	return exec.CommandContext(ctx, "qemu-system-x86_64", args...)
}

// arguments returns the arguments that do not depend on how the output is used. /dev/kvm is never
// used, even if it exists: this computer may itself be virtual, and a guest would hang. Both
// processors take turns in one thread: with separate threads, one may run code that the other has
// just patched, and new kernels occasionally panic at boot. The processor has no fast strings, with
// which kernels would copy and clear memory byte by byte, each an emulated step, instead of eight
// bytes at a time; that took a fifth of the total time.
//
// In an exact machine two nanoseconds pass with every instruction and none without: when all wait for a timer, it is due
// at once. So times are the same however busy this computer is, and the machine seems three times faster than another
// one, though it takes a third longer. qemu can do so with one processor only: with two it does not boot.
func (m *Machine) arguments(initramfs string) []string {
	memory := m.Memory
	if memory == 0 {
		memory = 1024
	}
	processors := []string{"-smp", "2"}
	if m.Exact {
		processors = []string{"-smp", "1", "-icount", "shift=1,sleep=off"}
	}
	return append(processors,
		"-accel", "tcg,thread=single", "-cpu", "max,la57=off,-erms,-fsrm", "-machine", "q35",
		"-m", fmt.Sprintf("%dM", memory), "-nodefaults", "-no-user-config", "-no-reboot",
		"-kernel", m.Image, "-initrd", initramfs,
		// What the kernel would protect or measure at boot costs seconds under emulation. An oops
		// stops the machine, so that none goes unnoticed.
		"-append", "console=ttyS0 panic=-1 oops=panic loglevel=4 mitigations=off tsc=reliable no_timer_check "+
			"random.trust_cpu=on cryptomgr.notests audit=0 apparmor=0")
}

func (m *Machine) writeInitramfs(path string, jobs []byte) error {
	var modules []string
	files := []File{
		{Path: "/init", Mode: 0o755, Content: initScript},
		{Path: "/jobs", Mode: 0o644, Content: jobs},
		{Path: "/bin/busybox", Mode: 0o755, Source: m.Busybox},
	}
	for _, module := range m.Modules {
		files = append(files, module)
		modules = append(modules, module.Path+"\n")
	}
	files = append(files, File{Path: "/modules", Mode: 0o644, Content: []byte(strings.Join(modules, ""))})
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create initramfs: %w", err)
	}
	defer out.Close()
	if err := writeArchive(out, append(files, m.Files...)); err != nil {
		return err
	}
	return out.Close()
}
