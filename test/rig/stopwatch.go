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

// Stopwatch measures what is promised in seconds on a machine that does other things too: time during which some process
// waited for a processor does not count, and on a machine of which MACHINE_SLOWER says that it is so many times slower
// than a real one, as an emulated one is, time counts for so much less. Elsewhere it is an ordinary one.
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

// Took returns the time since the start that counts.
func (s Stopwatch) Took() time.Duration {
	s.t.Helper()
	took := time.Since(s.began)
	return time.Duration(float64(max(0, took-(waited(s.t)-s.waited))) / s.slower)
}

// Times returns n, or on a machine that is said to be slower a part of it that takes about as long there: for what has
// to happen often enough to be worth something.
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
		t.Fatalf("MACHINE_SLOWER is %q: it has to be a number from 1 on", text)
	}
	return times
}

// waited returns for how long so far, since the machine started, some process waited for a processor; 0 on a kernel that
// does not tell.
func waited(t T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/pressure/cpu")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) { // not built in, or switched off
		return 0
	}
	if err != nil {
		t.Fatalf("read the wait for processors: %v", err)
	}
	total, err := pressure(string(text))
	if err != nil {
		t.Fatalf("read the wait for processors: %v", err)
	}
	return total
}

// pressure reads the total of the line "some" of a file in /proc/pressure.
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
