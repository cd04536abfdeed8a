package vm

import (
	"archive/tar"
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tailLines is the number of the console's lines that a DiedError shows.
const tailLines = 60

// report follows what a machine reports about its jobs while they run.
type report struct {
	dir     string
	mark    string
	jobs    []Job
	results []Result
	running string // the job that has begun but not ended
	done    bool   // the machine has sent all its files too

	began time.Time
	log   *os.File // log of the running job

	cpu      func() time.Duration // returns how much CPU time the machine has used so far
	beganCPU time.Duration
}

func newReport(dir, mark string, jobs []Job) *report {
	return &report{dir: dir, mark: mark, jobs: jobs, cpu: func() time.Duration { return 0 }}
}

// jobsScript returns the script for the first process, and the mark of its own lines: a random text
// that a job cannot write by accident.
func jobsScript(env []string, jobs []Job) (mark string, script []byte) {
	mark = rand.Text()
	script = append(exports(env), "MARK="+mark+"\n"...)
	for _, job := range jobs {
		script = append(script, "job "+quote(job.Name)...)
		for _, arg := range job.Args {
			script = append(script, " "+quote(arg)...)
		}
		script = append(script, '\n')
	}
	return mark, script
}

func exports(env []string) []byte {
	var script []byte
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		script = append(script, "export "+name+"="+quote(value)+"\n"...)
	}
	return script
}

// quote turns any text into one word for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// follow reads until the machine is off. It calls cancel, which stops the machine, if something
// takes too long.
func (r *report) follow(from io.Reader, boot time.Duration, cancel func(error)) error {
	limit := time.AfterFunc(boot, func() { cancel(fmt.Errorf("not ready after %s", boot)) })
	defer func() { limit.Stop() }()
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if ours, ok := strings.CutPrefix(line, r.mark+" "); ok {
			limit.Stop()
			left, err := r.step(strings.Fields(ours))
			if err != nil {
				return err
			}
			job := r.running
			limit = time.AfterFunc(left, func() { cancel(tooLong(job, left)) })
		} else if r.log != nil {
			if _, err := r.log.WriteString(line); err != nil {
				return fmt.Errorf("write log: %w", err)
			}
		}
		if errors.Is(err, io.EOF) {
			return r.closeLog()
		}
		if err != nil {
			return fmt.Errorf("read report: %w", err)
		}
	}
}

func tooLong(job string, limit time.Duration) error {
	if job == "" {
		return fmt.Errorf("not off %s after the last job", limit)
	}
	return fmt.Errorf("time-out after %s", limit)
}

// step handles a line of the machine's first process, and returns the time limit until the next
// line.
func (r *report) step(words []string) (limit time.Duration, err error) {
	if len(words) == 0 {
		return 0, errors.New("read report: empty line")
	}
	next := len(r.results)
	switch verb, args := words[0], words[1:]; {
	case verb == "begin" && len(args) == 1 && next < len(r.jobs) && args[0] == r.jobs[next].Name && r.running == "":
		r.running, r.began, r.beganCPU = args[0], time.Now(), r.cpu()
		r.log, err = os.Create(r.logPath(args[0]))
		return r.jobs[next].Limit, err
	case verb == "end" && len(args) == 2 && args[0] == r.running:
		code, err := strconv.Atoi(args[1])
		if err != nil {
			return 0, fmt.Errorf("read report: exit code: %w", err)
		}
		r.results = append(r.results, Result{Code: code, Took: time.Since(r.began), CPU: r.cpu() - r.beganCPU, Log: r.logPath(args[0])})
		r.running = ""
		return endLimit, r.closeLog()
	case verb == "done" && len(args) == 0 && r.running == "" && next == len(r.jobs):
		r.done = true
		return endLimit, nil
	}
	return 0, fmt.Errorf("read report: unexpected %q", words)
}

func (r *report) logPath(job string) string { return filepath.Join(r.dir, job+".log") }

func (r *report) closeLog() error {
	if r.log == nil {
		return nil
	}
	err := r.log.Close()
	r.log = nil
	return err
}

// unpackFiles unpacks the files written by each job into a directory of its own.
func unpackFiles(archive string, r *report) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open files of machine: %w", err)
	}
	defer file.Close()
	// A root confines the files to the directory, whatever names the archive has.
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return fmt.Errorf("open output directory: %w", err)
	}
	defer root.Close()
	reader := tar.NewReader(bufio.NewReader(file))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read files of machine: %w", err)
		}
		if err := unpackFile(root, header, reader); err != nil {
			return fmt.Errorf("keep file %s of machine: %w", header.Name, err)
		}
	}
	for i, job := range r.jobs {
		r.results[i].Out = filepath.Join(r.dir, job.Name)
	}
	return nil
}

func unpackFile(root *os.Root, header *tar.Header, content io.Reader) error {
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	if err := root.MkdirAll(filepath.Dir(header.Name), 0o755); err != nil {
		return err
	}
	file, err := root.Create(header.Name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	return file.Close()
}

// readConsole returns the console's output without a terminal's carriage returns, or nothing if
// there is none.
func readConsole(path string) []byte {
	content, _ := os.ReadFile(path)
	return []byte(strings.ReplaceAll(string(content), "\r", ""))
}

func tail(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
