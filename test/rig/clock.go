package rig

import (
	"time"

	"golang.org/x/sys/unix"
)

// Coarse returns the time by the clock of the programs, which stands still between two ticks, and for longer where the
// processor that keeps the time is held up, as an emulated one can be.
func Coarse(t T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatalf("read clock: %v", err)
	}
	return time.Duration(now.Nano())
}
