package rig

import (
	"time"

	"golang.org/x/sys/unix"
)

// Coarse returns the time on the clock that the BPF programs use. That clock stands still between
// two ticks, and for longer where the CPU that keeps the time is held up, as an emulated CPU can
// be.
func Coarse(t T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatalf("read clock: %v", err)
	}
	return time.Duration(now.Nano())
}
