package vm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/test/kernels/debian"
	"fairlead.io/fairlead/test/rig"
)

// newMachine returns a machine with the first pinned kernel that has been fetched.
func newMachine(t *testing.T) *Machine {
	t.Helper()
	const remedy = " (go run ./test/kernels -fetch)"
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		rig.Lacking(t, "kernels", "no qemu found"+remedy)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		rig.Lacking(t, "kernels", "no busybox found"+remedy)
	}
	pins, err := debian.Pins()
	if err != nil {
		t.Fatal(err)
	}
	for _, pin := range pins {
		if kernel, err := debian.Cached(pin); err == nil {
			return &Machine{Image: kernel.Image, Busybox: busybox, Dir: filepath.Join(t.TempDir(), "out")}
		}
	}
	rig.Lacking(t, "kernels", "no kernel has been fetched"+remedy)
	return nil
}

func TestJobs(t *testing.T) {
	m := newMachine(t)
	m.Env = []string{"WORDS=it's two words"}
	m.Files = []File{{Path: JobDir("second") + "/data/file", Mode: 0o644, Content: []byte("content\n")}}
	results, err := m.Run(t.Context(), []Job{
		{Name: "first", Args: []string{"sh", "-c", "echo out; echo err >&2; printf 'no newline'; exit 7"}, Limit: time.Minute},
		{Name: "second", Args: []string{"sh", "-c", `cat data/file; echo "$WORDS"; id -u; mkdir $JOB_OUT/sub; seq 20000 >$JOB_OUT/sub/many`},
			Limit: time.Minute},
		{Name: "third", Args: []string{"/no such program"}, Limit: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		code int
		log  string
	}{{7, "out\nerr\nno newline\n"}, {0, "content\nit's two words\n0\n\n"}, {127, "not found"}} {
		log, err := os.ReadFile(results[i].Log)
		if err != nil {
			t.Fatal(err)
		}
		if results[i].Code != want.code || !strings.Contains(string(log), want.log) {
			t.Errorf("job %d: exit code %d, log %q; want %d, %q", i, results[i].Code, log, want.code, want.log)
		}
	}
	many, err := os.ReadFile(filepath.Join(results[1].Out, "sub", "many"))
	if err != nil || !strings.HasPrefix(string(many), "1\n2\n") || !strings.HasSuffix(string(many), "\n20000\n") || len(many) != 108894 {
		t.Errorf("file of %d bytes, error %v", len(many), err)
	}
}

// In an exact machine, time that nobody works passes at once.
func TestExact(t *testing.T) {
	m := newMachine(t)
	m.Exact = true
	results, err := m.Run(t.Context(), []Job{
		{Name: "hour", Args: []string{"sh", "-c", "a=$(date +%s); sleep 3600; echo $(($(date +%s) - a)) s"}, Limit: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	if log, err := os.ReadFile(results[0].Log); results[0].Code != 0 || !strings.HasPrefix(string(log), "3600 s") {
		t.Errorf("exit code %d, log %q, error %v", results[0].Code, log, err)
	}
}

// If a machine dies, the last lines of its console and the results of earlier jobs are reported.
func TestDeath(t *testing.T) {
	for _, test := range []struct {
		name, script string
		limit        time.Duration
		cause        string // prefix of DiedError.Cause
		console      string // expected in DiedError.Tail
	}{
		{"panic", "echo last words; echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 60", time.Minute,
			"Kernel panic - not syncing", "sysrq triggered crash"},
		{"time-out", "echo last words; echo on the console >/dev/kmsg; exec sleep 600", 2 * time.Second,
			"time-out after 2s", "on the console"},
		{"switched off", "echo last words; echo on the console >/dev/kmsg; reboot -f", time.Minute,
			"the machine switched itself off", "on the console"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t)
			results, err := m.Run(t.Context(), []Job{
				{Name: "before", Args: []string{"true"}, Limit: time.Minute},
				{Name: "death", Args: []string{"sh", "-c", "echo 7 >/proc/sys/kernel/printk; " + test.script}, Limit: test.limit},
				{Name: "after", Args: []string{"true"}, Limit: time.Minute},
			})
			var died *DiedError
			if !errors.As(err, &died) {
				t.Fatalf("error %v", err)
			}
			if !strings.HasPrefix(died.Cause, test.cause) || died.Job != "death" || !strings.Contains(died.Tail, test.console) {
				t.Errorf("cause %q, job %q, tail:\n%s", died.Cause, died.Job, died.Tail)
			}
			if len(results) != 1 || results[0].Code != 0 {
				t.Errorf("results: %+v", results)
			}
			if log, err := os.ReadFile(filepath.Join(m.Dir, "death.log")); !strings.Contains(string(log), "last words") {
				t.Errorf("log %q, error %v", log, err)
			}
		})
	}
}

// A kernel that cannot be booted is not a time-out.
func TestNoKernel(t *testing.T) {
	m := newMachine(t)
	m.Image = m.Busybox
	if _, err := m.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "qemu") {
		t.Errorf("error %v", err)
	}
}
