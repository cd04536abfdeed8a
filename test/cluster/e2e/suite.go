package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/cluster/e2e/verdict"
	"fairlead.io/fairlead/test/cluster/running"
)

// killDelay is the time that the suite has to report and clean up after it is told to stop.
const killDelay = 30 * time.Second

// suite runs upstream's tests.
type suite struct {
	options
	cluster *running.Cluster
	never   string // regular expression matching the specs to leave out
	ginkgo  string
	dir     string // absolute
}

// part is one run of the suite: either the specs that can run beside others, or those that cannot.
type part struct {
	name   string
	labels string
	procs  int
}

// newSuite builds the programs unless they exist already.
func newSuite(o options, c *running.Cluster, never string) (*suite, error) {
	set, err := pinned.Find("ginkgo", "e2e.test")
	if err != nil {
		return nil, err
	}
	if specs := set.KubernetesVersion(); specs != c.Kubernetes {
		return nil, fmt.Errorf("find suite: the specs are those of Kubernetes %s, but the cluster runs %s; set KUBERNETES_MINOR as when the cluster was started", specs, c.Kubernetes)
	}
	if err := set.Build(os.Stderr); err != nil {
		return nil, err
	}
	s := &suite{options: o, cluster: c, never: never}
	if s.dir, err = filepath.Abs(o.out); err != nil {
		return nil, fmt.Errorf("find directory for results: %w", err)
	}
	// Results of an earlier run must not be taken for those of this one.
	if err := errors.Join(os.RemoveAll(s.dir), os.MkdirAll(s.dir, 0o755)); err != nil {
		return nil, fmt.Errorf("clear directory for results: %w", err)
	}
	ginkgo, err := set.Binary("ginkgo")
	if err != nil {
		return nil, err
	}
	tests, err := set.Binary("e2e.test")
	if err != nil {
		return nil, err
	}
	s.ginkgo = ginkgo.Path
	// Ginkgo recognizes a compiled suite by the suffix .test.
	if err := os.Symlink(tests.Path, s.tests()); err != nil {
		return nil, fmt.Errorf("find suite: %w", err)
	}
	return s, nil
}

func (s *suite) tests() string { return filepath.Join(s.dir, "e2e.test") }

// run runs the specs that can run beside others in parallel, and then the rest one by one.
func (s *suite) run(ctx context.Context) (*verdict.Run, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("not finished after %v", s.timeout))
	defer cancel()
	all := &verdict.Run{Others: map[string]bool{}}
	for _, p := range []part{{"parallel", "!Serial", s.procs}, {"serial", "Serial", 1}} {
		found, err := s.runPart(ctx, p)
		if err != nil {
			return nil, err
		}
		all.Merge(found)
	}
	return all, errors.Join(os.Remove(s.tests()))
}

// runPart runs a part and returns the contents of its report.
func (s *suite) runPart(ctx context.Context, p part) (*verdict.Run, error) {
	log, err := os.Create(filepath.Join(s.dir, p.name+".log"))
	if err != nil {
		return nil, fmt.Errorf("run %s specs: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, s.ginkgo, s.arguments(p)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = killDelay
	ended := s.cluster.Netns("control").Run(cmd)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("run %s specs: %w; see %s", p.name, context.Cause(ctx), log.Name())
	case ended != nil && !errors.As(ended, &exit):
		return nil, fmt.Errorf("run %s specs: %w", p.name, ended)
	}
	report, err := os.Open(filepath.Join(s.dir, "junit_"+p.name+"01.xml"))
	if err != nil {
		return nil, fmt.Errorf("run %s specs: no report was written; see %s: %w", p.name, log.Name(), errors.Join(ended, err))
	}
	defer report.Close()
	found, err := verdict.ParseJUnit(report)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", report.Name(), err)
	}
	if ended != nil && !found.Failed() {
		found.Problems = append(found.Problems, fmt.Sprintf("the %s part ended with %v, but its report has no failure; see %s", p.name, ended, log.Name()))
	}
	return found, nil
}

// arguments returns the command line of a part: ginkgo's own options, the suite, the suite's options.
func (s *suite) arguments(p part) []string {
	args := []string{
		"--procs=" + strconv.Itoa(p.procs), "--label-filter=" + p.labels, "--focus=" + s.focus, "--timeout=" + s.timeout.String(),
		"--no-color", "--output-interceptor-mode=none", "--poll-progress-after=0",
	}
	if s.never != "" {
		args = append(args, "--skip="+s.never)
	}
	return append(args, s.tests(), "--",
		"--provider=local", "--kubeconfig="+s.cluster.Kubeconfig, "--num-nodes="+strconv.Itoa(s.cluster.Nodes),
		"--dump-logs-on-failure=false", "--disable-log-dump", "--node-schedulable-timeout=3m", "--system-pods-startup-timeout=3m",
		"--report-dir="+s.dir, "--report-prefix="+p.name)
}
