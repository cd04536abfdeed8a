// Command all runs benchmarks one after another, as "make bench-NAME" does, and collects their results:
// all.json with the rows of all of them, and a picture of each.
//
//	go run ./test/bench/all -output _output/bench control socket
//
// It first removes results of these benchmarks from an earlier run, so that a benchmark that fails
// leaves no results instead of old ones. After a failure it continues with the next benchmark and
// exits 1 at the end; a missed goal is not a failure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/bench/plot"
	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	output := flag.String("output", "_output/bench", "the folder for results")
	tool := flag.String("make", "make", "the make that runs the benchmarks")
	fresh := flag.Bool("run", true, "run the benchmarks; if false, only collect existing results")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := suite{folder: *output, out: os.Stdout, now: time.Now}
	if *fresh {
		s.run = func(name string) error { return runMake(ctx, *tool, name) }
	}
	if err := s.do(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// runMake runs a benchmark as a user would.
func runMake(ctx context.Context, tool, name string) error {
	command := exec.CommandContext(ctx, tool, "--no-print-directory", "bench-"+name)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	// A benchmark cleans up when it is terminated. If it does not end in time, it is killed.
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 30 * time.Second
	if err := command.Run(); err != nil {
		return fmt.Errorf("run bench-%s: %w", name, err)
	}
	return ctx.Err()
}

// suite is a set of benchmarks and the folder for their results.
type suite struct {
	folder string
	out    io.Writer
	run    func(name string) error // nil = they have already run
	now    func() time.Time
}

// do runs the benchmarks and collects their results, even if some fail.
func (s *suite) do(names []string) error {
	if len(names) == 0 {
		return errors.New("no benchmarks given: name the benchmarks")
	}
	var rows []result.Row
	var about []result.About
	var failed []error
	for _, name := range names {
		began := s.now()
		r, a, err := s.one(name)
		if err != nil {
			failed = append(failed, err)
			fmt.Fprintf(s.out, "%s: FAILED: %v\n\n", name, err)
			continue
		}
		fmt.Fprintf(s.out, "%s: %s, in %.1f minutes\n\n", name, verdicts(r), s.now().Sub(began).Minutes())
		rows, about = append(rows, r...), append(about, a...)
	}
	if len(rows) == 0 {
		return errors.Join(append(failed, errors.New("collect results: there are none"))...)
	}
	all := filepath.Join(s.folder, "all.json")
	if err := result.Save(all, rows, about); err != nil {
		return errors.Join(append(failed, err)...)
	}
	fmt.Fprintf(s.out, "%s: %s\n", all, verdicts(rows))
	return errors.Join(failed...)
}

// one runs one benchmark, draws its results and returns them.
func (s *suite) one(name string) ([]result.Row, []result.About, error) {
	if name == "all" || name == "" || strings.ContainsAny(name, "/. ") {
		return nil, nil, fmt.Errorf("%q is not the name of a benchmark", name)
	}
	path := filepath.Join(s.folder, name+".json")
	if s.run != nil {
		for _, old := range []string{path, result.AboutPath(path), plot.PathOf(path)} {
			if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, nil, fmt.Errorf("remove earlier results: %w", err)
			}
		}
		fmt.Fprintf(s.out, "== %s\n", name)
		if err := s.run(name); err != nil {
			return nil, nil, err
		}
	}
	rows, err := result.Load(path)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		if !strings.HasPrefix(r.Row, name+"/") {
			return nil, nil, fmt.Errorf("read results of %s: row %q is of another benchmark", path, r.Row)
		}
	}
	about, err := result.LoadAbout(path)
	if err != nil {
		return nil, nil, err
	}
	return rows, about, plot.File(path)
}

// verdicts counts the verdicts on the goals.
func verdicts(rows []result.Row) string {
	count := map[result.Verdict]int{}
	for _, r := range rows {
		count[r.Verdict]++
	}
	return fmt.Sprintf("%d goals met, %d missed, %d inconclusive", count[result.Pass], count[result.Miss], count[result.Inconclusive])
}
