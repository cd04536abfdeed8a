package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fairlead.io/fairlead/test/kernels/debian"
	"fairlead.io/fairlead/test/kernels/vm"
)

// logTail is how much of a failed suite's log is printed.
const logTail = 40

// runner boots kernels and runs suites on them.
type runner struct {
	busybox  string
	output   string
	suites   []suite
	tree     string          // the top of the source tree
	binaries string          // a directory that goes with close
	built    map[string]bool // by name
	results  []kernelResult
}

func newRunner(busybox, output string, suites []suite) (*runner, error) {
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("find source tree: %w", err)
	}
	binaries, err := os.MkdirTemp("", "fairlead-kernels-")
	if err != nil {
		return nil, fmt.Errorf("create directory for binaries: %w", err)
	}
	return &runner{
		busybox: busybox, output: output, suites: suites, binaries: binaries, built: map[string]bool{},
		tree: filepath.Dir(strings.TrimSpace(string(gomod))),
	}, nil
}

func (r *runner) close() { _ = os.RemoveAll(r.binaries) }

// runAll runs every kernel, also after one has failed, and reports.
func (r *runner) runAll(ctx context.Context, kernels []*debian.Kernel) error {
	for _, kernel := range kernels {
		result, err := r.run(ctx, kernel)
		if err != nil {
			return fmt.Errorf("kernel %s: %w", kernel.Kernel, err)
		}
		r.results = append(r.results, result)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return report(r.output, r.results)
}

// run runs the kernel's suites. The error is about the rig; what the kernel or a suite did wrong is in the result.
func (r *runner) run(ctx context.Context, kernel *debian.Kernel) (kernelResult, error) {
	result := kernelResult{kernel: kernel.Kernel, release: kernel.Release}
	wanted := r.suitesOf(kernel)
	machine, jobs, err := r.machine(ctx, kernel, wanted)
	if err != nil {
		return result, err
	}
	fmt.Printf("\n== %s (%s)\n", kernel.Kernel, kernel.Release)
	begin := time.Now()
	results, died := machine.Run(ctx, jobs)
	result.took = time.Since(begin)
	for i, ended := range results {
		verdict, ok, err := wanted[i].verdict(ended)
		if err != nil {
			return result, err
		}
		result.add(suiteResult{name: wanted[i].name, verdict: verdict, ok: ok, took: ended.Took})
		if !ok {
			showTail(ended.Log)
		}
	}
	var dead *vm.DiedError
	if errors.As(died, &dead) {
		if dead.Job != "" {
			showTail(filepath.Join(machine.Dir, dead.Job+".log"))
		}
		fmt.Println(dead)
		for _, lost := range wanted[len(results):] {
			result.add(suiteResult{name: lost.name, verdict: "no result: " + dead.Cause})
		}
		return result, nil
	}
	if died != nil {
		return result, died
	}
	return result, result.readInstructions(machine.Dir)
}

// suitesOf returns what is to run on the kernel.
func (r *runner) suitesOf(kernel *debian.Kernel) []suite {
	var wanted []suite
	for _, s := range r.suites {
		if (s.refuses == nil) == kernel.Serves {
			wanted = append(wanted, s)
		}
	}
	return wanted
}

// shell boots the kernel with everything that its suites need.
func (r *runner) shell(ctx context.Context, kernel *debian.Kernel) error {
	machine, _, err := r.machine(ctx, kernel, r.suitesOf(kernel))
	if err != nil {
		return err
	}
	return machine.Shell(ctx)
}

// machine returns the machine for a kernel, with what the suites need inside.
func (r *runner) machine(ctx context.Context, kernel *debian.Kernel, suites []suite) (*vm.Machine, []vm.Job, error) {
	if len(suites) == 0 {
		return nil, nil, errors.New("no suite is left to run on it")
	}
	m := &vm.Machine{
		Image: kernel.Image, Busybox: r.busybox, Dir: filepath.Join(r.output, kernel.Kernel),
		// All that may lack is lacking by mistake: a test that skips proves nothing.
		Env: []string{"FAIRLEAD_REQUIRE=root"},
	}
	modules, err := kernel.Modules(r.busybox, modules()...)
	if err != nil {
		return nil, nil, err
	}
	for _, module := range modules {
		m.Modules = append(m.Modules, vm.File{Path: "/modules.d/" + module.Name + ".ko", Mode: 0o644, Content: module.Content})
	}
	var jobs []vm.Job
	for _, s := range suites {
		if err := r.build(ctx, s); err != nil {
			return nil, nil, err
		}
		m.Files = append(m.Files, s.payload(r.binaries, r.tree)...)
		jobs = append(jobs, s.job())
	}
	return m, jobs, nil
}

// modules are those of the kernel's modules that the suites use.
func modules() []string { return []string{"veth"} }

// build builds what the suite runs, unless that was done for another kernel.
func (r *runner) build(ctx context.Context, s suite) error {
	names := map[string][]string{s.name: {"build", module + s.pkg}}
	if s.isTest() {
		names[s.name] = []string{"test", "-c", module + s.pkg}
	}
	for _, pkg := range s.beside {
		names[filepath.Base(pkg)] = []string{"build", module + pkg}
	}
	for name, what := range names {
		if r.built[name] {
			continue
		}
		last := len(what) - 1
		args := append(what[:last:last], "-o", filepath.Join(r.binaries, name), "-trimpath", "-ldflags=-s -w", what[last])
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = r.tree
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", what[last], err, out)
		}
		r.built[name] = true
	}
	return nil
}

// showTail prints the end of a log.
func showTail(path string) {
	content, err := os.ReadFile(path)
	if err != nil {
		return // the job had not begun
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	fmt.Printf("-- the end of %s:\n%s\n--\n", path, strings.Join(lines[max(0, len(lines)-logTail):], "\n"))
}
