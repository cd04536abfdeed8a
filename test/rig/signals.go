package rig

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// WithoutSignals calls f on a thread with all signals blocked. The Go runtime sends signals to
// preempt threads, and the kernel restarts a test run (BPF_PROG_TEST_RUN) that a signal interrupts,
// after some of its repetitions have already run.
func WithoutSignals(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	defer func() {
		if restoreErr := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); restoreErr != nil {
			err = errors.Join(err, fmt.Errorf("allow signals again: %w", restoreErr))
		}
	}()
	return f()
}
