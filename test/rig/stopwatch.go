package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stopwatch measures what is promised in seconds on a machine that does other things too: time during which some process
// waited for a processor does not count. On a machine with nothing to wait for it is an ordinary one.
type Stopwatch struct {
	t      T
	began  time.Time
	waited time.Duration
}

// NewStopwatch starts a Stopwatch.
func NewStopwatch(t T) Stopwatch {
	t.Helper()
	return Stopwatch{t: t, began: time.Now(), waited: waited(t)}
}

// Took returns the time since the start that counts.
func (s Stopwatch) Took() time.Duration {
	s.t.Helper()
	took := time.Since(s.began)
	return max(0, took-(waited(s.t)-s.waited))
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
