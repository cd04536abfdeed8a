package machine

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadLoad(t *testing.T) {
	const stat = `proc/stat cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0`
	tests := []struct {
		name string
		root fs.FS
		want Load
		fail string
	}{
		{
			name: "as it is",
			root: files(`proc/loadavg 1.25 0.86 0.91 3/130 8191`, stat),
			want: Load{One: 1.25, Five: 0.86, Fifteen: 0.91, Runnable: 3, Times: Times{
				Busy: 1630 * time.Millisecond, Softirq: 70 * time.Millisecond, Steal: 80 * time.Millisecond, Idle: 40500 * time.Millisecond,
			}},
		},
		{name: "no load", root: files(stat), fail: "read the load"},
		{name: "odd load", root: files(`proc/loadavg none`, stat), fail: "read the load from"},
		{name: "no times", root: files(`proc/loadavg 1 1 1 3/130 8191`), fail: "read the times of the CPUs"},
		{name: "few times", root: files(`proc/loadavg 1 1 1 3/130 8191`, `proc/stat cpu 1 2 3`), fail: "has no eight"},
		{name: "odd times", root: files(`proc/loadavg 1 1 1 3/130 8191`, `proc/stat cpu 1 2 3 4 5 6 seven 8`), fail: "seven"},
	}
	for _, tt := range tests {
		got, err := ReadLoad(tt.root)
		if tt.fail != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fail) {
				t.Errorf("%s: have error %v, want one with %q", tt.name, err, tt.fail)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

func TestTimes(t *testing.T) {
	before := Times{Busy: 10, Softirq: 2, Steal: 1, Idle: 100}
	after := Times{Busy: 40, Softirq: 12, Steal: 11, Idle: 120}
	spent := after.Since(before)
	if want := (Times{Busy: 30, Softirq: 10, Steal: 10, Idle: 20}); spent != want {
		t.Errorf("since: have %+v, want %+v", spent, want)
	}
	if got := spent.Stolen(); got != 0.25 {
		t.Errorf("stolen: have %v, want a quarter", got)
	}
	if got := (Times{}).Stolen(); got != 0 {
		t.Errorf("stolen of no time: have %v, want 0", got)
	}
}

func TestReadTree(t *testing.T) {
	// ticks: user and system time, and both again for children that were waited for
	process := func(pid, name, parent, ticks string) string {
		return "proc/" + pid + "/stat " + pid + " (" + name + ") S " + parent + " 1 1 0 -1 4194560 1 2 3 4 " + ticks + " 20 0 1 0 5 6 7"
	}
	root := files(
		process("1", "init", "0", "1000 1000 1000 1000"),
		process("10", "bench", "1", "1 2 3 4"),
		process("11", "a ) b (c", "10", "10 20 0 0"),
		process("12", "grandchild", "11", "100 200 0 0"),
		process("13", "stranger", "1", "5000 5000 0 0"),
		"proc/self/stat not a process", "proc/uptime 1 2",
	)
	tests := []struct {
		pid  int
		want time.Duration
	}{{10, 3400 * time.Millisecond}, {11, 3300 * time.Millisecond}, {12, 3 * time.Second}, {13, 100 * time.Second}}
	for _, tt := range tests {
		if got, err := ReadTree(root, tt.pid); err != nil || got != tt.want {
			t.Errorf("of process %d: have %v and %v, want %v", tt.pid, got, err, tt.want)
		}
	}
	if _, err := ReadTree(root, 99); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that does not exist: have %v", err)
	}
	for _, odd := range []string{"10 bench", "10 (bench) S 1 2", "10 (bench) S x 1 1 0 -1 0 1 2 3 4 1 2 3 4 5", "10 (bench) S 1 1 1 0 -1 0 1 2 3 4 1 x 3 4 5"} {
		if _, err := ReadTree(files("proc/10/stat "+odd), 10); err == nil {
			t.Errorf("ReadTree accepts the stat %q", odd)
		}
	}
}

func TestReadTreeHere(t *testing.T) {
	root, pid := os.DirFS("/"), os.Getpid()
	before, err := ReadTree(root, pid)
	if err != nil {
		t.Fatal(err)
	}
	// Work until it shows, however slow the machine is.
	for after := before; after < before+2*tick; {
		for range 1_000_000 {
			pid++
		}
		if after, err = ReadTree(root, os.Getpid()); err != nil {
			t.Fatal(err)
		}
		if t.Context().Err() != nil {
			t.Fatal("work took no CPU time")
		}
	}
}
