package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"fairlead.io/fairlead/test/kernels/debian"
	"fairlead.io/fairlead/test/kernels/vm"
)

// logLines is the number of lines printed of a failed suite's log.
const logLines = 60

// runner boots kernels and runs suites on them.
type runner struct {
	busybox  string
	output   string
	suites   []suite
	short    bool            // only suites' own kernels, if they name one
	tree     string          // top of the source tree
	binaries string          // directory removed by close
	built    map[string]bool // names of the binaries built so far
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

// guest is a kernel in its machine.
type guest struct {
	kernel  *debian.Kernel
	machine *vm.Machine
	suites  []suite
	jobs    []vm.Job
	out     bytes.Buffer // output about it
	result  kernelResult
	err     error // of the machine; failures of the kernel or a suite are in the result
}

// machines is the number of machines that share the suites of a kernel, so that none runs alone for
// minutes at the end.
const machines = 2

// runAll runs every kernel, even after one has failed, and reports the results. A machine keeps one
// processor busy, so as many run at once as there are processors; the output of each appears when
// it has ended. The newest kernel, on which everything takes longest, runs first, and of each
// kernel the machine with the longest suite: whatever starts last should be short.
func (r *runner) runAll(ctx context.Context, kernels []*debian.Kernel) error {
	var guests []*guest
	for _, kernel := range slices.Backward(kernels) {
		if err := os.RemoveAll(filepath.Join(r.output, kernel.Kernel)); err != nil {
			return fmt.Errorf("prepare output directory: %w", err)
		}
		for i, share := range deal(r.suitesOf(kernel), machines) {
			g, err := r.guest(ctx, kernel, share, strconv.Itoa(i+1))
			if err != nil {
				return fmt.Errorf("kernel %s: %w", kernel.Kernel, err)
			}
			guests = append(guests, g)
		}
	}
	ended, waiting := make(chan *guest), make(chan *guest, len(guests))
	for _, g := range guests {
		waiting <- g
	}
	close(waiting)
	for range runtime.NumCPU() {
		go func() {
			for g := range waiting {
				g.err = g.run(ctx)
				ended <- g
			}
		}()
	}
	var errs []error
	for range guests {
		g := <-ended
		_, _ = g.out.WriteTo(os.Stdout)
		if g.err != nil {
			errs = append(errs, fmt.Errorf("kernel %s: %w", g.kernel.Kernel, g.err))
		}
	}
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	var results []kernelResult
	for _, g := range slices.Backward(guests) {
		if last := len(results) - 1; last >= 0 && results[last].kernel == g.result.kernel {
			results[last].add(g.result)
		} else {
			results = append(results, g.result)
		}
	}
	return report(r.output, results)
}

// run runs the kernel's suites.
func (g *guest) run(ctx context.Context) error {
	g.result = kernelResult{kernel: g.kernel.Kernel, release: g.kernel.Release}
	fmt.Fprintf(&g.out, "\n== %s (%s), machine %s\n", g.kernel.Kernel, g.kernel.Release, filepath.Base(g.machine.Dir))
	begin := time.Now()
	results, died := g.machine.Run(ctx, g.jobs)
	g.result.took = time.Since(begin)
	for i, ended := range results {
		verdict, ok, err := g.suites[i].verdict(ended)
		if err != nil {
			return err
		}
		g.add(suiteResult{name: g.suites[i].name, verdict: verdict, ok: ok, took: ended.Took, cpu: ended.CPU})
		if !ok {
			showLog(&g.out, ended.Log)
		}
	}
	var dead *vm.DiedError
	if errors.As(died, &dead) {
		if dead.Job != "" {
			showLog(&g.out, filepath.Join(g.machine.Dir, dead.Job+".log"))
		}
		fmt.Fprintln(&g.out, dead)
		for _, lost := range g.suites[len(results):] {
			g.add(suiteResult{name: lost.name, verdict: "no result: " + dead.Cause})
		}
		return nil
	}
	if died != nil {
		return died
	}
	return g.result.readInstructions(g.machine.Dir)
}

// add records a result and prints it.
func (g *guest) add(s suiteResult) {
	g.result.suites = append(g.result.suites, s)
	how := "ok"
	if !s.ok {
		how = "FAILED"
	}
	fmt.Fprintf(&g.out, "%-6s  %-10s %6.1f s, computing %6.1f s  %s\n", how, s.name, s.took.Seconds(), s.cpu.Seconds(), s.verdict)
}

// suitesOf returns the suites to run on the kernel.
func (r *runner) suitesOf(kernel *debian.Kernel) []suite {
	var wanted []suite
	for _, s := range r.suites {
		elsewhere := slices.Contains(s.without, kernel.Kernel) || r.short && s.once != "" && s.once != kernel.Kernel
		if (s.refuses == nil) == kernel.Serves && !elsewhere {
			wanted = append(wanted, s.on(kernel.Kernel))
		}
	}
	return wanted
}

// shell boots the kernel with everything that its suites need.
func (r *runner) shell(ctx context.Context, kernel *debian.Kernel) error {
	g, err := r.guest(ctx, kernel, r.suitesOf(kernel), "shell")
	if err != nil {
		return err
	}
	return g.machine.Shell(ctx)
}

// guest prepares a machine with the kernel and everything that the suites need.
func (r *runner) guest(ctx context.Context, kernel *debian.Kernel, suites []suite, name string) (*guest, error) {
	if len(suites) == 0 {
		return nil, errors.New("no suite is left to run on it")
	}
	m := &vm.Machine{
		Image: kernel.Image, Busybox: r.busybox, Dir: filepath.Join(r.output, kernel.Kernel, name),
		// Whatever is missing is missing by mistake: a skipped test proves nothing. An emulated
		// processor is at least ten times slower than the real one.
		Exact: slices.ContainsFunc(suites, func(s suite) bool { return s.exact }),
		Env:   []string{"FAIRLEAD_REQUIRE=root links sctp netkit fq nfqueue map-iterators", "MACHINE_SLOWER=4"},
	}
	needed := modules()
	for _, s := range suites {
		needed = append(needed, s.modules...)
	}
	modules, err := kernel.Modules(r.busybox, needed...)
	if err != nil {
		return nil, err
	}
	for _, module := range modules {
		m.Modules = append(m.Modules, vm.File{Path: "/modules.d/" + module.Name + ".ko", Mode: 0o644, Content: module.Content})
	}
	var jobs []vm.Job
	for _, s := range suites {
		if err := r.build(ctx, s); err != nil {
			return nil, err
		}
		m.Files = append(m.Files, s.payload(r.binaries, r.tree)...)
		jobs = append(jobs, s.job())
	}
	return &guest{kernel: kernel, machine: m, suites: suites, jobs: jobs}, nil
}

// modules returns the kernel modules that the suites use, except those that only some of them need.
func modules() []string {
	return []string{"veth", "udp_diag", "tcp_diag", "bridge", "8021q", "bonding", "sctp", "sch_ingress", "cls_bpf", "sch_fq", "vxlan", "tcp_bbr", "sch_netem"}
}

// build builds the suite's binaries unless that was done for another kernel.
func (r *runner) build(ctx context.Context, s suite) error {
	how := []string{"build"}
	if s.isTest() {
		how = []string{"test", "-c"}
	}
	if err := r.goBuild(ctx, s.name, r.tree, module+s.pkg, how...); err != nil {
		return err
	}
	for _, pkg := range s.extraCommands {
		if err := r.goBuild(ctx, filepath.Base(pkg), r.tree, module+pkg, "build"); err != nil {
			return err
		}
	}
	for _, f := range s.foreign {
		if err := r.goBuild(ctx, f.name, filepath.Join(r.tree, f.dir), f.pkg, "build"); err != nil {
			return err
		}
	}
	return nil
}

// goBuild builds a binary of the given name from a package, in the module of a directory.
func (r *runner) goBuild(ctx context.Context, name, dir, pkg string, how ...string) error {
	if r.built[name] {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", append(how, "-o", filepath.Join(r.binaries, name), "-trimpath", "-ldflags=-s -w", pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	r.built[name] = true
	return nil
}

// showLog prints the part of a log that shows why it failed.
func showLog(out io.Writer, path string) {
	content, err := os.ReadFile(path)
	if err != nil {
		return // the job had not begun
	}
	fmt.Fprintf(out, "-- from %s:\n%s\n--\n", path, complaint(string(content)))
}
