package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stopwatch measures times that are promised in seconds, on a machine that does other things too.
// Time during which some process waited for a CPU does not count. Where the environment variable
// MACHINE_SLOWER says that the machine is so many times slower than a real one, as an emulated one
// is, the time is divided by that number.
type Stopwatch struct {
	t      T
	began  time.Time
	waited time.Duration
	slower float64
}

// NewStopwatch starts a Stopwatch.
func NewStopwatch(t T) Stopwatch {
	t.Helper()
	return Stopwatch{t: t, began: time.Now(), waited: waited(t), slower: slower(t)}
}

// Took returns the time since the start, less what does not count.
func (s Stopwatch) Took() time.Duration {
	s.t.Helper()
	took := time.Since(s.began)
	return time.Duration(float64(max(0, took-(waited(s.t)-s.waited))) / s.slower)
}

// Times returns n, or fewer on a machine that MACHINE_SLOWER calls slower, so that the repetitions
// take about as long there.
func Times(t T, n int) int {
	t.Helper()
	return max(1, int(float64(n)/slower(t)))
}

func slower(t T) float64 {
	t.Helper()
	text := os.Getenv("MACHINE_SLOWER")
	if text == "" {
		return 1
	}
	times, err := strconv.ParseFloat(text, 64)
	if err != nil || times < 1 {
		t.Fatalf("MACHINE_SLOWER is %q: it must be a number of at least 1", text)
	}
	return times
}

// waited returns for how long, since the machine started, some process has waited for a CPU, or 0
// on a kernel that does not report it.
func waited(t T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/pressure/cpu")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) { // not built in, or disabled
		return 0
	}
	if err != nil {
		t.Fatalf("read CPU pressure: %v", err)
	}
	total, err := pressure(string(text))
	if err != nil {
		t.Fatalf("read CPU pressure: %v", err)
	}
	return total
}

// pressure returns the total of the line "some" in a file of /proc/pressure.
func pressure(text string) (time.Duration, error) {
	for line := range strings.Lines(text) {
		var ten, minute, five float64
		var total int64
		if _, err := fmt.Sscanf(line, "some avg10=%f avg60=%f avg300=%f total=%d", &ten, &minute, &five, &total); err == nil {
			return time.Duration(total) * time.Microsecond, nil
		}
	}
	return 0, fmt.Errorf("no total in %q", text)
}
